"""Command lines are shown to all who may see a finding: no secret in them."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd_agent.addresses.read import BLANK, blanked

SECRET = "S3cr3t.Value-9"


@pytest.mark.parametrize(
    "line",
    [
        f"train.py --password {SECRET} --lr 3",
        f"train.py --token={SECRET}",
        f"train.py --api-key '{SECRET} and more'",
        f"train.py -hfToken {SECRET}",
        f"train.py --my_secret_thing={SECRET}",
        f"train.py --auth -{SECRET}",
        f"train.py '--password=two {SECRET}'",
        f"env WANDB_API_KEY={SECRET} AWS_SECRET_ACCESS_KEY={SECRET} python train.py",
        f"bash -c 'export DB_PASSWORD={SECRET}; exec python train.py'",
        f"bash -c 'train.py --hf-token {SECRET} --lr 3'",
        f"bash -c 'train.py --hf-token \"{SECRET} {SECRET}\" --lr 3'",
        f"""train.py '{{"lr": 3, "token": "{SECRET}", "size": 2}}'""",
        f"curl -H 'Authorization: Bearer {SECRET}' http://logs",
        f"curl -H 'Authorization: Token {SECRET}' -H 'Cookie: a=b; session={SECRET}' http://logs",
        f"bash -c 'curl -H \"Authorization: AWS4 Credential=a, Signature={SECRET}\" http://logs'",
        f"train.py https://files.example/x?X-Amz-Signature={SECRET}&x=1",
        f"train.py --data 'https://files.example/x?se=2&sig={SECRET}'",
        f"train.py +logger.api_key={SECRET}",
        f"train.py postgresql://user:{SECRET}@db/runs",
        f"train.py --store=https://{SECRET}@files.example/x",
        f"train.py hf_{SECRET.replace('.', 'x').replace('-', 'x')}",
        "train.py sk-S3cr3t-abcdefgh ghp_S3cr3tabcdefgh AKIAS3CR3TABCDEFGH",
        f"train.py --key {SECRET} --encryption-key={SECRET}",
    ],
)
def test_no_secret_is_shown(line: str) -> None:
    """Options, variables, headers, JSON, URLs, and tokens that are known by how they begin."""
    shown = blanked(shlex.split(line))
    assert BLANK in shown
    assert "s3cr3t" not in shown.lower()
    assert shown.split()[0] == line.split(maxsplit=1)[0]


def test_what_is_no_secret_stays() -> None:
    """People recognize the program by these."""
    line = (
        "python train.py --max-tokens 4096 --tokenizer gpt2 --lr=3e-4 --data /data/shard-17.tar "
        "--author me --compass north --url http://host:80/a@b --master-port 29500"
    )
    assert blanked(line.split()) == line


def test_after_a_switch_the_next_option_stays() -> None:
    """``--use-auth-token`` may have no value."""
    assert blanked(["t.py", "--use-auth-token", "--lr", "3"]) == "t.py --use-auth-token --lr 3"


def test_a_title_is_shown_as_it_is() -> None:
    """A process that names itself has one word with spaces in it."""
    assert blanked(["ray::train (rank 3)"]) == "ray::train (rank 3)"
    assert SECRET not in blanked([f"train --token {SECRET} (rank 3)"])


@given(st.lists(st.text(max_size=40), min_size=2, max_size=8))
def test_words_are_shown_as_a_shell_takes_them(words: list[str]) -> None:
    """Whatever they are."""
    assert len(shlex.split(blanked(words))) == len(words)


@pytest.mark.parametrize("part", ["--", "token", "a.", "://", '"', "--token ", "key=", "sk-"])
def test_a_hostile_line_takes_no_time(part: str) -> None:
    """As long as the agent reads."""
    began = time.perf_counter()
    blanked(["t.py", part * (4096 // len(part))])
    assert time.perf_counter() - began < 1.0
