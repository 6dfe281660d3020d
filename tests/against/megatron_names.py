"""Compares the tensors of tools/dump_megatron.py with ones that are cut here as Megatron-core cuts them."""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))
from dump_megatron import huggingface_tensors  # noqa: E402

HEADS, GROUPS, SIZE, HIDDEN, INNER, VOCABULARY = 8, 4, 6, 20, 24, 30
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": SIZE, "hidden_size": HIDDEN,
          "intermediate_size": INNER, "vocab_size": VOCABULARY}


def numbered(*shape):
    """Returns a tensor in which no two elements are equal."""
    numbered.next += 10000
    return torch.arange(float(torch.Size(shape).numel())).view(shape) + numbered.next


numbered.next = 0


def fused_qkv(q, k, v):
    """Rows of each group, one after the other: its query heads, its key head, its value head."""
    rows, queries = [], HEADS // GROUPS
    for group in range(GROUPS):
        for head in range(group * queries, (group + 1) * queries):
            rows += [q[head * SIZE + i] for i in range(SIZE)]
        rows += [k[group * SIZE + i] for i in range(SIZE)]
        rows += [v[group * SIZE + i] for i in range(SIZE)]
    return torch.stack(rows)


def fused_gate_up(gate, up, tp):
    """Each tp rank has its rows of gate, then those of up."""
    own = INNER // tp
    return [torch.cat([gate[r * own:(r + 1) * own], up[r * own:(r + 1) * own]]) for r in range(tp)]


def check(name, shards, expected):
    found = huggingface_tensors(name, shards, CONFIG)
    assert list(found) == list(expected), f"{name}: {list(found)}"
    for part, values in expected.items():
        assert torch.equal(found[part], values), f"{name}: {part}"


def check_layer(tp):
    for kind, inputs in (("weight", (HIDDEN,)), ("bias", ())):
        q, k, v = (numbered(heads * SIZE, *inputs) for heads in (HEADS, GROUPS, GROUPS))
        check(f"decoder.layers.3.self_attention.linear_qkv.{kind}", fused_qkv(q, k, v).chunk(tp),
              {f"model.layers.3.self_attn.{part}_proj.{kind}": values for part, values in zip("qkv", (q, k, v))})
        gate, up = numbered(INNER, *inputs), numbered(INNER, *inputs)
        check(f"decoder.layers.11.mlp.linear_fc1.{kind}", fused_gate_up(gate, up, tp),
              {f"model.layers.11.mlp.gate_proj.{kind}": gate, f"model.layers.11.mlp.up_proj.{kind}": up})
    for name, own, width in (("self_attention.linear_proj", "self_attn.o_proj", HEADS * SIZE),
                             ("mlp.linear_fc2", "mlp.down_proj", INNER)):
        weight, bias = numbered(HIDDEN, width), numbered(HIDDEN)
        check(f"decoder.layers.0.{name}.weight", weight.chunk(tp, dim=1), {f"model.layers.0.{own}.weight": weight})
        check(f"decoder.layers.0.{name}.bias", [bias], {f"model.layers.0.{own}.bias": bias})
    padded = numbered(VOCABULARY + 10, HIDDEN)
    for name, own in (("embedding.word_embeddings", "model.embed_tokens"), ("output_layer", "lm_head")):
        check(f"{name}.weight", padded.chunk(tp), {f"{own}.weight": padded[:VOCABULARY]})


def main():
    for tp in (1, 2, 4, 8):  # 8: two ranks have parts of one group
        check_layer(tp)
    norm = numbered(HIDDEN)
    check("decoder.final_layernorm.weight", [norm], {"model.norm.weight": norm})
    for name, own in (("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm"),
                      ("self_attention.q_layernorm", "self_attn.q_norm"),
                      ("self_attention.k_layernorm", "self_attn.k_norm")):
        check(f"decoder.layers.2.{name}.weight", [norm], {f"model.layers.2.{own}.weight": norm})
    for module, own in (("self_attention.linear_qkv", "input_layernorm"),
                        ("mlp.linear_fc1", "post_attention_layernorm")):
        check(f"decoder.layers.2.{module}.layer_norm_weight", [norm], {f"model.layers.2.{own}.weight": norm})
    for name, shards in (("decoder.layers.0.mlp.experts.linear_fc1.weight0", [norm]),
                         ("decoder.layers.0.mlp.linear_fc1.weight", [numbered(INNER, HIDDEN)]),  # not gated
                         ("embedding.position_embeddings.weight", [norm])):
        try:
            huggingface_tensors(name, shards, CONFIG)
        except ValueError as refused:
            assert name in str(refused), refused
        else:
            raise AssertionError(f"{name} is not refused")
    print("all names as expected")


if __name__ == "__main__":
    main()
