"""Verdicts on what programs said. Each function returns a note for the summary, or raises Failed."""

import math
import re


class Failed(Exception):
    """A check that failed; the text says in a line what was wrong."""


class NotHere(Exception):
    """A check that this machine cannot run; the text says why. Anything else that does not run has failed."""


def complaint(output):
    """The line of a failed program's output that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for telling in (r"DIFFERENT", r"^meshtrain: ", r"\[  FAILED  \] [A-Za-z]", r"^rank \d+ of \d+: \S+ failed ",
                    r"[Ee]rror|NOT |nothing is "):
        for line in lines:
            if re.search(telling, line):
                return line[:200]
    return lines[-1][:200] if lines else "it said nothing"


def ended_well(status, output):
    if status != 0:
        raise Failed(f"status {status}: {complaint(output)}")


def google_test(output):
    """All tests of a program ran and passed, one at least."""
    passed = re.search(r"^\[  PASSED  \] (\d+) tests?", output, re.MULTILINE)
    skipped = re.findall(r"^\[  SKIPPED \] ([\w/]+\.[\w/]+)$", output, re.MULTILINE)
    if skipped:
        raise Failed(f"{len(set(skipped))} tests were skipped: {', '.join(sorted(set(skipped)))}"[:200])
    if not passed or int(passed[1]) == 0:
        raise Failed("no test ran")
    return f"{passed[1]} tests"


def verification(output):
    """meshtrain verify found the mesh equal to one rank."""
    if not re.search(r"^equal: loss, gradient norm, ", output, re.MULTILINE):
        raise Failed("it did not say 'equal': " + complaint(output))
    return ""


def fault_found(status, output):
    """meshtrain verify found the fault that was planted."""
    if status != 1 or not re.search(r"^DIFFERENT: ", output, re.MULTILINE):
        raise Failed(f"a sum was left out, but verify ended with {status}: {complaint(output)}")
    return "a sum that is left out is found"


def cudnn_attention(output, of="causal"):
    """cuDNN computed attention, as meshtrain says: of causal squares, or of the ring's blocks, in which all pairs count."""
    lines = re.findall(r"attention by (\w+): [\d,]+ quer(?:y|ies), [\d,]+ keys?, (causal, )?", output)
    kernels = sorted({kernel for kernel, causal in lines if bool(causal) == (of == "causal")})
    if "cudnn" not in kernels:
        raise Failed(f"attention of {of} blocks was not computed by cudnn, but by " +
                     (", ".join(kernels) or "no kernel that it names"))
    return f"attention of {of} blocks by " + ", ".join(kernels)


def steps_of(metrics, count):
    """(loss, norm) of each step; `count` finite ones."""
    steps = [(step.get("loss"), step.get("grad_norm")) for step in metrics]
    if len(steps) != count:
        raise Failed(f"{len(steps)} of {count} steps are in metrics.jsonl")
    for number, step in enumerate(steps, 1):
        if any(value is None or not math.isfinite(value) for value in step):
            raise Failed(f"step {number} has loss {step[0]} and gradient norm {step[1]}")
    return steps


def distance(a, b):
    """The largest relative difference of two runs' numbers, over all steps."""
    return max(abs(x - y) / max(abs(x), abs(y), 1e-30) for one, other in zip(a, b) for x, y in zip(one, other))


def as_on_cpu(gpu, cpu):
    first, all_steps = distance(gpu[:1], cpu[:1]), distance([step[:1] for step in gpu], [step[:1] for step in cpu])
    note = f"first step {first:.1e} from the CPU's, losses {all_steps:.1e}"
    if first > 1e-3 or abs(gpu[0][0] - cpu[0][0]) > 1e-5 * cpu[0][0] or all_steps > 1e-2:
        raise Failed(note)
    return note


# A difference that a run may have where runs without what it tries have the same bits: its sums may have another order.
FLOOR = 1e-6
MULTIPLE = 4


def as_without(what, without, with_it):
    """Runs with it are as far from those without as these are from each other, by a small multiple."""
    noise = max((distance(a, b) for i, a in enumerate(without) for b in without[:i]), default=0.0)
    difference = max(distance(a, b) for a in without for b in with_it)
    note = f"{what} {difference:.1e} from without, without {noise:.1e} from itself"
    if difference > max(MULTIPLE * noise, FLOOR):
        raise Failed(note)
    return note + (", the same bits" if difference == 0 else "")


def flat_memory(metrics, last_step):
    """The allocator's peaks since the start, which never fall, are those of the first tenth of the steps at the end too."""
    notes = []
    for key, what in (("device_allocated_peak_bytes", "tensors"), ("device_reserved_peak_bytes", "allocator")):
        peaks = {line["step"]: line.get("memory", {}).get(key) for line in metrics}
        early, late = peaks.get(max(1, last_step // 10)), peaks.get(last_step)
        if early is None or late is None:
            raise Failed(f"metrics.jsonl has no memory.{key} of steps {max(1, last_step // 10)} and {last_step}")
        if late > early:
            raise Failed(f"{what}: {early >> 20} MiB after step {last_step // 10}, {late >> 20} MiB at the end "
                         f"({late - early} bytes more)")
        notes.append(f"{what} {late / (1 << 20):.0f} MiB")
    return ", ".join(notes)


def libraries_found(file, output):
    """`output`: of ldd."""
    missing = re.findall(r"^\s*(\S+) => not found", output, re.MULTILINE)
    missing += sorted(set(re.findall(r"version `(\S+)' not found", output)))
    if missing:
        raise Failed(f"{file} does not find " + ", ".join(missing))


def kernel_rates(output, rehearsal=False):
    """Every row of kernels_benchmark's tables has numbers, and so has the copy that kernels are compared with. A rehearsal
    only has the rows."""
    copy = re.search(r"copy on the device: (\d+) GB/s", output)
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in output.splitlines()
            if line.startswith("|") and not re.match(r"\|(-+\||.*\| (us|forward TFLOP/s) \|)", line)]
    if not copy or int(copy[1]) == 0 and not rehearsal or not rows:
        raise Failed("there is no table of rates")
    shares = []
    for row in rows:
        numbers = re.findall(r"(?<![\w.])(?:nan|-?inf|\d+(?:\.\d+)?)", " ".join(row[2:]))
        if not numbers or not rehearsal and any(not math.isfinite(float(n)) or float(n) <= 0 for n in numbers):
            raise Failed("no rate in: " + " | ".join(row))
        if row[-1].endswith("%"):
            shares.append(float(row[-1].rstrip(" %")))
    if not shares or len(shares) == len(rows):
        raise Failed("a table is missing: " + ("attention" if shares else "kernels"))
    if rehearsal:
        return f"{len(rows)} kernels were called"
    return f"{len(rows)} rates; {sum(share >= 85 for share in shares)} of {len(shares)} kernels at 85 % of a copy"


FIRST_LOSS, LAST_LOSS = 1e-3, 3e-2  # relative; the same weights and tokens, sums in other orders


def training(rows, peer_wanted, attention_wanted):
    """`rows`: of gpu_train.py, which gives a ratio where attention was as good in both. Each program has its speed, and
    they compute the same."""
    by_program = {row["program"]: row for row in rows}
    wanted = ["meshtrain", "meshtrain, as a graph"] + (["transformers"] if peer_wanted else [])
    missing = [name for name in wanted if name not in by_program]
    if missing:
        raise Failed("not measured: " + ", ".join(missing))
    for row in rows:
        losses = row["losses"]
        if not (math.isfinite(row["tokens_per_second"]) and row["tokens_per_second"] > 0):
            raise Failed(f"{row['program']}: {row['tokens_per_second']} tokens/s")
        if not losses or not all(isinstance(loss, float) and math.isfinite(loss) for loss in losses):
            raise Failed(f"{row['program']}: a loss is not a number")
        if attention_wanted and not row["attention"]:
            raise Failed(f"{row['program']} does not say which attention kernel ran")
    base = by_program["meshtrain"]["losses"]
    for name in wanted[1:]:
        losses = by_program[name]["losses"]
        for which, bound in ((0, FIRST_LOSS), (-1, LAST_LOSS)):
            if abs(losses[which] - base[which]) > bound * abs(base[which]):
                raise Failed(f"{name}: {'first' if which == 0 else 'last'} loss {losses[which]:.4f}, "
                             f"meshtrain's {base[which]:.4f}")
    notes = []
    for row in rows:
        times = row.get("ratio")
        notes.append(f"{row['program']} {row['tokens_per_second']:.0f} tokens/s, {row['causal_mfu']:.1f} % MFU" +
                     ("" if times is None else f", {times:.2f} times transformers'"))
    if peer_wanted and all(row.get("ratio") is None for row in rows):
        notes.append("no ratio: transformers ran attention by " + ", ".join(by_program["transformers"]["attention"]) +
                     ", not by cudnn or flash alone")
    return "; ".join(notes)
