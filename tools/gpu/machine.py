"""The machine that is checked: its programs, their environment, its GPUs. A real one, or the emulated GPU."""

import contextlib
import importlib.metadata
import importlib.util
import os
import select
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


TORCH = "2.11"
# Between ranks of one host, also in containers that forbid one process to read another's memory, or have no ssh
# (tools/ranks).
MPI_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl": "self,vader", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                "OMPI_MCA_plm": "isolated", "OMPI_MCA_ras": "^slurm,gridengine,tm,lsf,alps",
                "OMPI_MCA_orte_default_hostfile": "none", "PMIX_MCA_pcompress_base_silence_warning": "1"}


class Unusable(Exception):
    """Nothing can be checked on this machine; the text says what to do."""


@dataclass
class Machine:
    root: Path  # holds recipes/ and benchmarks/
    programs: dict  # name: file
    build: Path  # the folder with the plug-in
    emulated: bool
    num_gpus: int  # as many as ranks, when emulated
    environment: dict  # of every program: the user's own, without paths to libraries
    header: list = field(default_factory=list)  # lines about it
    cores: int = len(os.sched_getaffinity(0))

    @property
    def slots(self):
        """How many ranks checks may run beside each other."""
        return max(1, min(8, self.cores // 2))

    def can_use_nccl(self, ranks):
        return self.emulated or ranks <= max(1, self.num_gpus)

    def environment_of(self, ranks, cores, more=None):
        environment = dict(self.environment, OMP_NUM_THREADS=str(max(1, cores // ranks)), **(more or {}))
        if self.emulated:
            environment.setdefault("MESHTRAIN_EMULATED_GPUS", "1")
        return environment

    def on_ranks(self, ranks, words):
        """The command that runs `words` on so many ranks."""
        if ranks == 1:
            return words
        # By a path it would be a prefix, which shows its libraries to the ranks by LD_LIBRARY_PATH.
        return [self.programs["mpirun"], "--noprefix", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] + words


def plain_environment():
    """The user's environment without what would show libraries to the loader, or belongs to another launch."""
    hidden = ("OMPI_", "OPAL_", "PMIX_", "MESHTRAIN_", "OMP_")
    return {name: value for name, value in os.environ.items()
            if name not in ("LD_LIBRARY_PATH", "LD_PRELOAD") and not name.startswith(hidden)}


def bundled(folder):
    """The machine that this runs on, with the programs that tools/gpu_bundle has put into `folder`."""
    build, header = folder / "build", []
    torch = python_torch()
    link(folder / "libtorch-2.11.0", torch)
    environment = plain_environment()
    environment.update({"OPAL_PREFIX": str(folder), "OPAL_BINDIR": str(folder / "bin"),
                        "OPAL_LIBDIR": str(folder / "lib"), "OPAL_PKGLIBDIR": str(folder / "openmpi"),
                        "OPAL_PKGDATADIR": str(folder / "openmpi"), "OPAL_SYSCONFDIR": str(folder / "openmpi"),
                        "MESHTRAIN_BUILD": str(build), "MESHTRAIN_SOURCE": str(folder), **MPI_SETTINGS})
    driver = driver_folders()
    if driver:
        environment["LD_LIBRARY_PATH"] = ":".join(driver)
        header.append(f"LD_LIBRARY_PATH={':'.join(driver)}: the driver is found nowhere else")
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's
    gpus = lines_of(["nvidia-smi", *visible_gpus(), "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    header += gpus or ["nvidia-smi finds no GPU"]
    header += [f"torch {importlib.metadata.version('torch')} in {torch}"]
    programs = {"meshtrain": build / "meshtrain", "gpu_tests": build / "tests/gpu_tests",
                "matrix_tests": build / "tests/matrix_tests", "mpirun": folder / "bin/mpirun",
                "kernels_benchmark": build / "benchmarks/kernels_benchmark"}
    return Machine(folder, strings(programs), build, False, len(gpus), environment, header)


def emulated(root, build):
    """The emulated GPU of a build: BUILD/emulated of this checkout, or a folder with programs of the same names."""
    environment = plain_environment()
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment.update({"MESHTRAIN_BUILD": str(build), "MESHTRAIN_SOURCE": str(root), **MPI_SETTINGS})
    if not (build / "meshtrain").exists():
        raise Unusable(f"no emulated GPU in {build}: run tools/build release emulated_gpu_tests")
    programs = {"meshtrain": build / "meshtrain", "gpu_tests": build / "emulated_gpu_tests",
                "matrix_tests": build / "emulated_gpu_tests", "mpirun": "mpirun",
                "kernels_benchmark": build / "benchmarks/kernels_benchmark"}
    header = ["rehearsal on the emulated GPU: proves nothing about a real one"]
    return Machine(root, strings(programs), build, True, 1, environment, header)


@contextlib.contextmanager
def held_gpus(machine):
    """A context on each GPU of a real machine; gives the line that hold_gpus.py says, or ""."""
    if machine.emulated:
        yield ""
        return
    words = [sys.executable, str(Path(__file__).with_name("hold_gpus.py"))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=machine.environment) as holder:
        answers, _, _ = select.select([holder.stdout], [], [], 60)
        if not answers:
            holder.kill()
        yield holder.stdout.readline().strip() if answers else "no context is held: the driver has not answered for 60 s"


def strings(programs):
    return {name: str(program) for name, program in programs.items()}


def lines_of(words):
    try:
        result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return result.stdout.splitlines() if result.returncode == 0 else []


def visible_gpus():
    """Arguments with which nvidia-smi speaks of the GPUs that programs see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return ["-i", visible] if visible else []


def python_torch():
    """The folder of this python3's torch."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise Unusable(f"{sys.executable} has no torch: start it with the python3 that has, or pip install torch==2.11.0")
    torch, version = Path(found.submodule_search_locations[0]), importlib.metadata.version("torch")
    if not version.startswith(TORCH + "."):
        raise Unusable(f"{sys.executable} has torch {version}, the programs are built with {TORCH}: "
                       f"pip install torch=={TORCH}.0")
    if not (torch.parent / "nvidia/cu13/lib").is_dir():
        raise Unusable(f"{torch.parent}/nvidia/cu13/lib does not exist: this torch is not the CUDA 13 build from PyPI")
    return torch


def link(folder, torch):
    """Makes `folder` look as tools/setup --cuda leaves it: torch/ and nvidia/, which are python3's."""
    try:
        folder.mkdir(exist_ok=True)
        for name, target in (("torch", torch), ("nvidia", torch.parent / "nvidia")):
            path = folder / name
            if path.is_symlink() and os.readlink(path) == str(target):
                continue
            if path.is_symlink():
                path.unlink()
            path.symlink_to(target)
    except OSError as error:
        raise Unusable(f"{error}: copy the programs to a folder that can be written, without {folder.name}/") from None


def driver_folders():
    """Folders of LD_LIBRARY_PATH with the driver's libcuda.so.1, where the loader finds it nowhere else."""
    try:
        words = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
        if subprocess.run(words, env=plain_environment(), capture_output=True, timeout=60).returncode == 0:
            return []
    except (OSError, subprocess.TimeoutExpired):
        pass
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [folder for folder in folders if folder and (Path(folder) / "libcuda.so.1").exists()]
