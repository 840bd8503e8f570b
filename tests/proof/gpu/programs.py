"""The programs whose processes are read: each prints a line once it is in the state that its name says."""

from typing import Final

_HEAD: Final = """import ctypes, os, sys, time
def ready(): print("ready", flush=True)
def flags(number):
    import torch
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart" in line)
    assert ctypes.CDLL(path).cudaSetDeviceFlags(number) == 0
import torch
"""
_SPINS: Final = """flags({flags})
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
torch.cuda._sleep(1 << 50)
ready()
torch.cuda.synchronize()
"""
CHECK: Final = """import json, torch
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available(),
    "nccl": list(torch.cuda.nccl.version()) if torch.cuda.is_available() else None}))
"""
TORCH: Final = {
    "idle": _HEAD + "torch.zeros(1, device='cuda'); torch.cuda.synchronize(); ready(); time.sleep(10**6)\n",
    "training": _HEAD
    + """model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(10**9):
    optimizer.zero_grad()
    loss = model(torch.randn(4096, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    loss.item()
    if step == 20: ready()
""",
    # cudaDeviceScheduleSpin, Yield and BlockingSync: how a host waits for its device.
    "hung, its host spins": _HEAD + _SPINS.format(flags=1),
    "hung, its host yields": _HEAD + _SPINS.format(flags=2),
    "hung, its host blocks": _HEAD + _SPINS.format(flags=4),
    "nccl": _HEAD
    + """import torch.distributed as dist
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:" + sys.argv[1], rank=0, world_size=1)
for _ in range(3): dist.all_reduce(torch.ones(4, device="cuda"))
torch.cuda.synchronize()
ready()
time.sleep(10**6)
""",
    "context death": _HEAD
    + """ready()
found = torch.zeros(3, device="cuda")[torch.tensor([7], device="cuda")]
torch.cuda.synchronize()
print(found)
""",
    "memory": _HEAD
    + """free, _ = torch.cuda.mem_get_info()
held = torch.empty(min(free // 2, 8 << 30), dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
ready()
time.sleep(10**6)
""",
}
