"""Text for people and shells: commands, text that cannot control the terminal, and masked secrets."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.errors import OrchError
from orchestrator.model.printable import MASK, Command, find_secrets, mask, masked, one_line
from tests.conftest import HOSTILE_TEXTS
from tests.support.hostile import ESCAPE_SEQUENCE

PRINT_ARGUMENTS = 'printf "%s\\0" "$@" "$VALUE"'
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@example(arguments=list(HOSTILE_TEXTS), value=HOSTILE_TEXTS[0])
@given(arguments=st.lists(TEXT, max_size=4), value=TEXT)
def test_shell_runs_exactly_this_command(arguments: list[str], value: str) -> None:
    command = Command(argv=("sh", "-c", PRINT_ARGUMENTS, "sh", *arguments), env={"VALUE": value})
    result = subprocess.run(["sh", "-c", command.shell()], capture_output=True, check=True)
    assert result.stdout.decode().split("\0") == [*arguments, value, ""]


@given(st.text())
def test_one_line_is_printable(text: str) -> None:
    assert one_line(text).isprintable()


def test_errors_of_the_command_line_are_printable() -> None:
    text = (
        "from orchestrator.errors import OrchError\n"
        "from orchestrator.cli import main\n"
        f"def fail(arguments): raise OrchError({ESCAPE_SEQUENCE!r} + 'x', hint={ESCAPE_SEQUENCE!r})\n"
        "main.make_app = lambda name: fail\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, "\x1b" in done.stderr) == (OrchError.exit_code, False)


AWS = "AKIA" + "ABCDEFGHIJKLMNOP"
HUB = "hf_" + "abcdefghijklmnopqrst"


def test_secrets_are_found() -> None:
    for arguments, secrets in (
        (["DATABASE_URL=postgres://me:pw@h/db"], ("pw",)),  # password-in-a-url
        (["redis://:p@ss:word@h:6379/0"], ("p@ss:word",)),  # password-with-signs-in-a-url
        ([f"--index-url=https://{HUB}@example.org/simple"], (HUB,)),  # token-in-a-url
        (["--api-key=abcdefgh", "--password", "correct horse"], ("correct horse", "abcdefgh")),  # two
        ([f"--note={HUB}", AWS], (HUB, AWS)),  # by-format
        (["WANDB_API_KEY=0123456789"], ("0123456789",)),  # assignment
    ):
        assert set(find_secrets(arguments)) == set(secrets)
        assert not any(secret in argument for secret in secrets for argument in masked(arguments))
        assert masked(masked(arguments)) == masked(arguments)


def test_other_values_are_kept() -> None:
    for arguments in (
        ["--max_tokens", "1000000"],  # number-of-tokens
        ["--pad_token", "[PAD]"],  # special-token
        ["--token", "--verbose"],  # switch
        ["https://example.org/a@b", "s3://bucket/key", "user@host:path"],  # without-a-password
        ["sk-learn", "hf_", "gh_x"],  # short
        [f"--token={MASK}"],  # masked
    ):
        assert find_secrets(arguments) == ()


def test_short_password_is_masked_in_its_url_alone() -> None:
    text = "nodes: node0, --db postgres://me:e@host/e"
    assert mask(text, find_secrets(["postgres://me:e@host/e"])) == text.replace(":e@", f":{MASK}@")
