"""Settings every test needs: offline, no telemetry, few threads."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
