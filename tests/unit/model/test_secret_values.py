"""Secrets in options and arguments are recognized, and other values are not."""

from __future__ import annotations

import pytest

from orchestrator.model.printable import MASK, find_secrets, mask, masked

AWS = "AKIA" + "ABCDEFGHIJKLMNOP"
HUB = "hf_" + "abcdefghijklmnopqrst"


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        pytest.param(["DATABASE_URL=postgres://me:pw@h/db"], ("pw",), id="password-in-a-url"),
        pytest.param(["redis://:p@ss:word@h:6379/0"], ("p@ss:word",), id="password-with-signs-in-a-url"),
        pytest.param([f"--index-url=https://{HUB}@example.org/simple"], (HUB,), id="token-in-a-url"),
        pytest.param(["--hf_token", "abcdefgh"], ("abcdefgh",), id="by-name"),
        pytest.param(["--api-key=abcdefgh", "--password", "correct horse"], ("correct horse", "abcdefgh"), id="two"),
        pytest.param([f"--note={HUB}", AWS], (HUB, AWS), id="by-format"),
        pytest.param(["WANDB_API_KEY=0123456789"], ("0123456789",), id="assignment"),
    ],
)
def test_secrets_are_found(arguments: list[str], secrets: tuple[str, ...]) -> None:
    assert set(find_secrets(arguments)) == set(secrets)
    assert not any(secret in argument for secret in secrets for argument in masked(arguments))
    assert masked(masked(arguments)) == masked(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="nothing"),
        pytest.param(["--max_tokens", "1000000"], id="number-of-tokens"),
        pytest.param(["--pad_token", "[PAD]"], id="special-token"),
        pytest.param(["--sort_key", "alphabetical"], id="other-key"),
        pytest.param(["--token", "--verbose"], id="switch"),
        pytest.param(["https://example.org/a@b", "s3://bucket/key", "user@host:path"], id="without-a-password"),
        pytest.param(["git+ssh://git@example.org/a", "ssh://me@node1"], id="user-in-a-url"),
        pytest.param(["sk-learn", "hf_", "gh_x"], id="short"),
        pytest.param([f"--token={MASK}"], id="masked"),
    ],
)
def test_other_values_are_kept(arguments: list[str]) -> None:
    assert find_secrets(arguments) == ()


def test_short_password_is_masked_in_its_url_alone() -> None:
    text = "nodes: node0, --db postgres://me:e@host/e"
    assert mask(text, find_secrets(["postgres://me:e@host/e"])) == text.replace(":e@", f":{MASK}@")
