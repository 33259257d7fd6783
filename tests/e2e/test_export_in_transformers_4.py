"""What an export's texts say reads the same in the transformers that most users have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_smith.training.export import make_portable

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "assets/miniature/warm_start"

LOAD = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
answers = []
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    talk = [{"role": "user", "content": "Is it x  == 12?"}]
    text = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer.encode(text)
    with torch.no_grad():
        for _ in range(8):
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    answers.append([tokenizer.padding_side, tokenizer.eos_token, tokens])
print(json.dumps(answers))
"""

pytestmark = [pytest.mark.e2e, pytest.mark.whole_run]


def load(command: list[str], folders: list[str]) -> list[list[object]]:
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    run = subprocess.run(
        [*command, "-c", LOAD, *folders], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_transformers_4_and_5_load_the_same_policies(tmp_path: Path) -> None:
    folders = []
    for kind in ("dense", "moe"):
        shutil.copytree(POLICIES / kind, tmp_path / kind)
        make_portable(tmp_path / kind)
        folders.append(str(tmp_path / kind))
    older = ["uv", "run", "--no-project", "--isolated", "--python", "3.12"]
    for package in ("transformers==4.57.6", "torch==2.15.0", "numpy", "jinja2"):
        older += ["--with", package]
    ours = load(["uv", "run", "--frozen", "--no-sync", "--project", "envs/mini", "python"], folders)
    assert load([*older, "python"], folders) == ours
    assert [answer[:2] for answer in ours] == [["left", "<|im_end|>"]] * 2
