"""The pages of `python -m cudaguard explain`: data only, one page for each slug.

Words for people who have never heard of a fork. A block of lines that begin with four spaces is code.
"""

from __future__ import annotations

from typing import NamedTuple


class Fix(NamedTuple):
    """A way to repair it: what to do, code to paste where there is some, and what it costs."""

    what: str
    price: str
    code: str = ""


class Page(NamedTuple):
    """All that is to be said about a slug. `silence` is for pages where the usual way is not the right one."""

    slug: str
    title: str
    happened: str
    why: str
    find: str
    fixes: tuple[Fix, ...]
    silence: str = ""


# Why CUDA cannot survive a fork: the ground under most pages.
FORK = """
To make a worker process, Linux can copy a running process: that is a fork. The copy has the same memory, and it is quick, so Python's
multiprocessing and PyTorch's DataLoader work this way on Linux (up to Python 3.13; from 3.14 on, multiprocessing's own default there is
"forkserver").

CUDA does not survive the copy. When CUDA starts in a process, the driver opens devices, starts threads of its own and ties its state to
that process, there and on the GPU. A fork copies the memory of that state, but neither the threads nor the tie. The driver refuses to work
in the copy, and cannot be started there a second time. So the order counts: fork first and start CUDA afterwards, and all is well; start
CUDA first, and no process forked from then on can use the GPU. A child that leaves the GPU alone is fine either way.

Three things count as starting it. A tensor or a model that goes to the GPU starts all of it ("initialised"). A question such as
torch.cuda.is_available() starts the driver ("queried"), although torch.cuda.is_initialized() still says False. Another library, or an
import, may start the driver without PyTorch knowing ("driver").
"""

FIND_ORDER = """
The error names three places, in the order in which they happened: the line that started or asked CUDA, the line that forked, and the line
that touched CUDA in the child. Read them in that order: the first and the last belong to different processes.

If the first one says that it was not seen, cudaguard came on after CUDA had started. Put `import cudaguard` at the very top of the program,
or start the program with `python -m cudaguard script.py`. `python -m cudaguard trace script.py` tells the whole order, with every import
and every process. From inside a program, cudaguard.origin() tells who started CUDA so far, and
cudaguard.fork_safe() whether a child forked now could use it.
"""

CPU_WORKER = Fix(
    "Keep the worker on the CPU, and move each batch in the main process. For a DataLoader this is nearly always right: workers "
    "are there to read and prepare data.",
    "none to speak of. With pin_memory=True and non_blocking=True the copy to the GPU runs beside the computing.",
    "loader = DataLoader(dataset, num_workers=4, pin_memory=True)\n"
    'for x, y in loader:\n    x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)',
)
SPAWN = Fix(
    "Start the children anew instead of copying the parent. Each then has a CUDA of its own.",
    "seconds to start each child, hundreds of MB of GPU memory for each that uses CUDA, all that the child needs must pickle, and the script needs "
    'an `if __name__ == "__main__":` around what it runs. In a notebook, functions must come from a module.',
    'DataLoader(dataset, num_workers=4, multiprocessing_context="spawn")\nmultiprocessing.get_context("spawn").Pool(4)',
)
LATE = Fix(
    "Make the children first, and start CUDA in the parent afterwards: move the line that starts CUDA below the fork.",
    "none, where the order can be changed. A DataLoader forks again at each epoch unless persistent_workers=True, so for loaders this seldom lasts.",
)
NVML = Fix(
    "Where the parent only asks is_available(), let it ask without starting the driver. Set this before Python starts.",
    "none. It answers for this one question only: the first tensor on the GPU still starts CUDA.",
    "PYTORCH_NVML_BASED_CUDA_CHECK=1 python train.py",
)
NO_WORKERS = Fix(
    "Do the work in the main process.",
    "no work in parallel. For data that is on the GPU already that costs nothing: workers would not make it faster.",
    "DataLoader(dataset, num_workers=0)",
)
SERVER = Fix(
    "Under a server that forks its workers, load the model in each worker: "
    "gunicorn's post_fork or post_worker_init hook and no --preload, Celery's worker_process_init signal, "
    "uWSGI's postfork decorator or lazy-apps.",
    "each worker holds a model of its own.",
)
MAP_LOCATION = Fix(
    "If the line is torch.load or torch.jit.load, load to the CPU: a file remembers the device of its tensors.",
    "none.",
    'torch.load(path, map_location="cpu")',
)
DEFAULT_DEVICE = Fix(
    "If nothing on the line names the GPU, look for torch.set_default_device or set_default_tensor_type: they put every new tensor there, those of "
    "the dataset too. Let the default hold for the model only.",
    "none.",
    'with torch.device("cuda"):\n    model = Net()',
)
RAGGED = Fix(
    "For samples of different lengths, return them from the dataset as they are and let the loader build the nested or padded batch on the CPU.",
    "none.",
    "DataLoader(dataset, collate_fn=cudaguard.collate.nested)\nDataLoader(dataset, collate_fn=cudaguard.collate.pad_and_mask)",
)
RESTART = Fix(
    "In a notebook, restart the kernel and run the cells that make workers before the first one that uses CUDA. A kernel cannot stop CUDA again.",
    "what the kernel holds is lost.",
)
RECV = Fix(
    "Send CPU tensors between processes, and move them where they arrive.", "one copy each way.", "queue.put(x.cpu())\nx = queue.get().to(device)"
)

PAGES = (
    Page(
        "fork-after-init",
        "a forked child touched CUDA after its parent had started or asked CUDA",
        """A process started CUDA, or only asked whether there is a GPU. A child process was then forked from it, and the child tried to use
        CUDA. PyTorch's own words for it are "Cannot re-initialize CUDA in forked subprocess".""",
        FORK,
        FIND_ORDER,
        (CPU_WORKER, MAP_LOCATION, DEFAULT_DEVICE, RAGGED, NVML, LATE, SPAWN, SERVER, NO_WORKERS, RESTART),
    ),
    Page(
        "inherited-tensor",
        "a forked child used a CUDA tensor, module or generator that its parent had made",
        """The parent put data on the GPU. A child was forked from it and got the Python object along with the rest of the memory; when it
        used the object, CUDA failed. Without the guard the error is a bare "CUDA error: initialization error". The data often sits in a
        dataset, in a module that a transform uses, or in a global.""",
        """The object in the child is only a name for memory on the GPU, and that memory belongs to the parent's CUDA. Its shape and device
        can be read; its numbers cannot, not even to copy them to the CPU.\n\n"""
        + FORK,
        FIND_ORDER,
        (
            Fix(
                "Keep the dataset on the CPU, and move each batch after the loader.",
                "none to speak of: one copy for each batch.",
                'class Data(Dataset):\n    def __init__(self):\n        self.x = torch.load(path, map_location="cpu")',
            ),
            NO_WORKERS,
            SPAWN,
        ),
    ),
    Page(
        "foreign-library",
        "a CUDA library other than PyTorch failed in a forked child",
        """A library such as CuPy, Numba, JAX or NCCL was used in a child that was forked after CUDA had started in its parent. The
        library's own exception goes on unchanged; the guard adds a note to it that says where CUDA had started and where the fork was.""",
        "It does not matter who started CUDA and who uses it: all libraries in a process share one driver.\n\n" + FORK,
        FIND_ORDER,
        (LATE, SPAWN, Fix("Keep that library out of the worker, and do its part in the main process.", "that part no longer runs in parallel.")),
    ),
    Page(
        "worker-died",
        "a child that could not use CUDA died without an exception",
        """A child that was forked after CUDA had started in its parent is gone, and no Python exception came from it. PyTorch says
        "DataLoader worker (pid ...) exited unexpectedly". The guard adds what it knows: where CUDA had started, where the fork was, and how
        the child ended.""",
        """A library that meets a broken CUDA may end the process instead of raising. But a child can also die for other reasons: out of
        memory (the kernel kills it, signal 9), too little shared memory (signal 7, common in containers), a fault in other native code
        (signal 11). The guard does not know which, and says so.""",
        """Look at the signal or exit code in the note. Run with num_workers=0: if the program then works, forking is to blame, or memory;
        if it fails in the same way, neither is. PYTHONFAULTHANDLER=1 prints the Python line at which a child crashed; the kernel's log
        names processes killed for memory.""",
        (
            CPU_WORKER,
            SPAWN,
            Fix(
                "If memory is short: fewer workers, or more shared memory for a container.",
                "less in parallel, or a setting of the container.",
                "docker run --shm-size=8g ...",
            ),
        ),
    ),
    Page(
        "lost-gpu",
        "a forked child was told that there is no GPU, so it would quietly compute on the CPU",
        """A child asked torch.cuda.is_available(), or device_count(), and got "no", although there is a GPU that its parent uses. Code such
        as `"cuda" if torch.cuda.is_available() else "cpu"` then takes the CPU, gives right results, and is slow, perhaps for days. A child
        that hides the GPU itself, by CUDA_VISIBLE_DEVICES, is not reported.""",
        """The answer is not about the machine but about the child: its driver cannot be started again, and PyTorch reads that as "no
        GPU".\n\n"""
        + FORK,
        "The finding names the line that asked. " + FIND_ORDER.strip(),
        (
            Fix(
                "If the child is to stay on the CPU, say so: ask in the main process and hand the device to the child.",
                "none.",
            ),
            LATE,
            SPAWN,
        ),
    ),
    Page(
        "unsendable-output",
        "a worker's output cannot be sent to the parent; PyTorch would wait for ever",
        """A DataLoader worker made a batch that cannot be turned into bytes: it holds a lock, an open file, a lambda, a generator, a tensor
        that needs gradients and was computed from others, a CUDA tensor that came from yet another process, or an exception whose class
        cannot be imported. The guard raises this as that batch's error; without it the program hangs.""",
        """A worker sends its batch by a queue, and a thread of that queue pickles it. If pickling fails there, Python prints the error in
        the worker and drops the batch. Nobody tells the parent, which waits for that batch without end.""",
        """The error names the path to the culprit, such as batch["meta"][3].lock. To look at a sample yourself, in the main process:
        pickle.dumps(dataset[0]).""",
        (
            Fix(
                "Take gradients off before the batch leaves the worker.",
                "none: gradients cannot pass from a worker to the parent in any case.",
                "return x.detach()",
            ),
            Fix("Return plain data: tensors, numbers, strings, lists, dicts. Open files and make locks where they are used.", "none."),
            Fix("Copy a tensor that came from another process before you send it on.", "one copy.", "queue.put(x.clone())"),
        ),
    ),
    Page(
        "pin-cuda-output",
        "pinning was asked for a batch that is on the GPU already",
        """The loader has pin_memory=True, and its batch holds CUDA tensors. PyTorch stops with "cannot pin 'torch.cuda.FloatTensor' only
        dense CPU tensors can be pinned".""",
        """Pinned memory is memory of the CPU that the GPU can read directly, so that copies to the GPU are quick. What is on the GPU
        already has no such copy before it.""",
        "The error names the line of the loader and where the batch was put on the GPU, as far as it was seen.",
        (
            Fix("Keep the batch on the CPU in the dataset and collate_fn, and move it after the loader.", "none: this is what pinning is for."),
            Fix("Leave pinning out, if the data is to be on the GPU already.", "none.", "DataLoader(dataset, pin_memory=False)"),
        ),
    ),
    Page(
        "ipc-broken",
        "a CUDA tensor that came from another process cannot be used",
        """A process got a CUDA tensor from another one, and using it failed: the sender has ended or freed it, the handle is not valid
        here, or the tensor was itself received and then sent on ("Attempted to send CUDA tensor received from another process").""",
        """Between processes, a CUDA tensor is not copied. The sender gives away a handle to its own memory, by CUDA IPC. So the sender must
        live, and keep the tensor, until the receiver is done; and the receiver cannot pass on what it does not own. CUDA IPC is not there
        on Windows, and not in full on WSL. With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True it needs rights (pidfd_getfd) that many
        containers refuse.""",
        "The error names the line that used the tensor and, where it was seen, the process that sent it. Look whether that process "
        "ends, or drops the tensor, too early.",
        (
            RECV,
            Fix("Copy the tensor where it arrives, before it is sent on or the sender ends.", "one copy on the GPU.", "x = queue.get().clone()"),
            Fix(
                "Let the sender wait until the receiver is done.",
                "the sender's memory is held for that time.",
                "done = multiprocessing.Event()  # receiver: done.set()\ndone.wait()",
            ),
            Fix(
                "If expandable segments are on and the container refuses them, switch them off for the sender.",
                "more fragmentation of GPU memory.",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ),
        ),
    ),
    Page(
        "rerouted",
        "a tensor bound for CUDA was kept on the CPU in a worker, and moved in the parent",
        """This is the guard's own repair, in mode `reroute`: a worker that could not use CUDA asked for a CUDA tensor. It got one on the
        CPU; the batch was moved to its device in the main process. Nothing failed. Each place is told once.""",
        "The program asked for something that a forked worker cannot do. The repair gives the same batch. See: python -m cudaguard "
        "explain fork-after-init",
        "The line printed for it names the place.",
        (Fix("Nothing has to be done. To be rid of the guard, write what it does.", CPU_WORKER.price, CPU_WORKER.code),),
    ),
    Page(
        "cuda-ipc",
        "a CUDA tensor crosses processes by CUDA IPC",
        """A CUDA tensor was sent to another process. On Windows and WSL this is a warning, elsewhere a note: it works, but it has
        conditions.""",
        """The tensor is not copied: the receiver gets a handle to the sender's memory on the GPU. The sender must live, and keep the
        tensor, as long as the receiver uses it; the receiver cannot send it on; and each process pays for a CUDA context of its own. CUDA
        IPC is not there on Windows, and not in full on WSL.""",
        "The finding names the line that sent the tensor. If it comes from a DataLoader, the dataset or collate_fn returns CUDA tensors.",
        (RECV, CPU_WORKER),
    ),
    Page(
        "cuda-in-worker",
        "a worker process started CUDA: it costs a context",
        """A healthy worker, started by spawn or forkserver or forked before CUDA had started, uses the GPU itself. This works; it is only
        worth knowing.""",
        """Each process that uses CUDA has a context of its own: hundreds of MB of GPU memory for nothing but being there, and seconds to
        start. Eight workers may take several GB, and their kernels take turns with those of the training.""",
        "The finding names the line in the worker. nvidia-smi lists the memory of each process.",
        (
            CPU_WORKER,
            Fix(
                "Keep the workers, so that they start once and not at each epoch.",
                "the contexts stay for as long as the loader does.",
                "DataLoader(..., persistent_workers=True)",
            ),
            Fix("Use fewer workers.", "less in parallel."),
        ),
    ),
    Page(
        "import-initialises",
        "importing a module started CUDA",
        """CUDA started while a module was being imported. From then on no process forked from this one can use CUDA, although the program
        itself has not used it yet.""",
        """Some code runs at import: a global such as DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu"), a default
        tensor made at the top of a module, a library that looks for GPUs.\n\n"""
        + FORK,
        """The finding names the import in your program, and the chain of imports below it down to the line that did it.""",
        (
            Fix(
                "In a module of your own, ask when it is needed, not at import.",
                "none.",
                'def device():\n    return torch.device("cuda" if torch.cuda.is_available() else "cpu")',
            ),
            Fix(
                "Import the module later: in the function that uses it, after the workers are made, or in the child.",
                "the first call pays for the import.",
            ),
            NVML,
        ),
    ),
    Page(
        "forbidden-init",
        "CUDA was started or asked where the program forbids it",
        """The program, or a test, says that CUDA must not start here (cudaguard.forbid_init), and a line did it all the same.""",
        """Libraries and tests use this to keep a promise such as "importing us does not start CUDA" or "this part runs before the
        fork".\n\n"""
        + FORK,
        "The error is raised at the line itself; its traceback is the way there.",
        (
            Fix("Move the line out of the block, or below it.", "none."),
            Fix(
                "If a question such as is_available() is harmless here, allow questions. They start the driver, so what is forked later still "
                "cannot use CUDA.",
                "the promise is weaker.",
                "with cudaguard.forbid_init(allow_queries=True):\n    ...",
            ),
        ),
        silence="""Take forbid_init away. CUDAGUARD_IGNORE=forbidden-init also lets it pass.""",
    ),
    Page(
        "internal",
        "cudaguard itself failed, and stepped aside",
        """A fault inside the guard was caught. The guard does nothing more in that process; the program goes on as without it, and its
        result is its own.""",
        "This is a bug in cudaguard, or a release of PyTorch that differs from those it knows.",
        """The message has the exception and the line in the guard. `python -m cudaguard doctor` shows the versions and what this release of
        PyTorch has no name for.""",
        (
            Fix("Report it, with the finding from CUDAGUARD_REPORT and the output of doctor.", "none."),
            Fix("Run without the guard until then.", "no explanations.", "CUDAGUARD=off python train.py"),
        ),
        silence="It is a note: it goes to the report, never to the terminal.",
    ),
)
