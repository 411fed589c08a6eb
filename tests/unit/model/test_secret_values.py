"""Secrets in options and arguments are recognized, and other values are not."""

from __future__ import annotations

from orchestrator.model.printable import MASK, find_secrets, mask, masked

AWS = "AKIA" + "ABCDEFGHIJKLMNOP"
HUB = "hf_" + "abcdefghijklmnopqrst"


def test_secrets_are_found() -> None:
    for arguments, secrets in (
        (["DATABASE_URL=postgres://me:pw@h/db"], ("pw",)),  # password-in-a-url
        (["redis://:p@ss:word@h:6379/0"], ("p@ss:word",)),  # password-with-signs-in-a-url
        ([f"--index-url=https://{HUB}@example.org/simple"], (HUB,)),  # token-in-a-url
        (["--hf_token", "abcdefgh"], ("abcdefgh",)),  # by-name
        (["--api-key=abcdefgh", "--password", "correct horse"], ("correct horse", "abcdefgh")),  # two
        ([f"--note={HUB}", AWS], (HUB, AWS)),  # by-format
        (["WANDB_API_KEY=0123456789"], ("0123456789",)),  # assignment
    ):
        assert set(find_secrets(arguments)) == set(secrets)
        assert not any(secret in argument for secret in secrets for argument in masked(arguments))
        assert masked(masked(arguments)) == masked(arguments)


def test_other_values_are_kept() -> None:
    for arguments in (
        [],  # nothing
        ["--max_tokens", "1000000"],  # number-of-tokens
        ["--pad_token", "[PAD]"],  # special-token
        ["--sort_key", "alphabetical"],  # other-key
        ["--token", "--verbose"],  # switch
        ["https://example.org/a@b", "s3://bucket/key", "user@host:path"],  # without-a-password
        ["git+ssh://git@example.org/a", "ssh://me@node1"],  # user-in-a-url
        ["sk-learn", "hf_", "gh_x"],  # short
        [f"--token={MASK}"],  # masked
    ):
        assert find_secrets(arguments) == ()


def test_short_password_is_masked_in_its_url_alone() -> None:
    text = "nodes: node0, --db postgres://me:e@host/e"
    assert mask(text, find_secrets(["postgres://me:e@host/e"])) == text.replace(":e@", f":{MASK}@")
