"""Files with credentials are refused in the code of a job, unless the user allows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubectl_ddp.code import pack
from kubectl_ddp.code.script import read_script
from kubectl_ddp.errors import UsageError
from tests.support.archives import names_in

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIBOgIBAAJBAKj34GkxFhD90vcN\n-----END RSA PRIVATE KEY-----\n"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ACCOUNT = json.dumps({"type": "service_account", "private_key": PEM})

NAMES = (
    *(".env", "conf/.env.production", ".netrc", "keys/id_rsa", "id_ed25519", "kubeconfig", "store.p12", "token.json"),
    *(".ssh/deploy", ".aws/credentials", "home/.kube/config", "gcloud/application_default_credentials.json"),
    *("conf/secrets.yaml", ".streamlit/secrets.toml", ".config/wandb/settings", "terraform.tfstate"),
)
"""Files that are refused by their name, whatever they contain."""
FILES = dict.fromkeys(NAMES, "x") | {
    "server.pem": PEM,
    "notes.txt": f"see below\n{PEM}",
    ".npmrc": "//registry.example.com/:_authToken=0123456789",
    "account.json": ACCOUNT,
    ".docker/config.json": '{"auths": {"example.com": {"auth": "bWU6cHc="}}}',
    "settings.ini": f"aws_secret_access_key = {SECRET}",
    "deploy.sh": f"export AWS_SECRET_ACCESS_KEY={SECRET}",
    "cluster.yaml": "users:\n- user:\n    client-key-data: LS0tLS1CRUdJTg==",
    "push.py": f"TOKEN = 'ghp_{'a1B2' * 9}'",
    "pull.sh": f"docker login -u me -p dckr_pat_{'a1B2' * 6}",
}
HARMLESS = {
    ".env.example": "A=",
    "chain.pem": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ".ssh/id_rsa.pub": "ssh-rsa AAAA",
    ".npmrc": "//registry.example.com/:_authToken=${NPM_TOKEN}",
    "config.json": '{"hidden_size": 8, "auth": "none"}',
    "keys.py": 'HEADER = "-----BEGIN PRIVATE KEY-----"\naws_secret_access_key = os.environ["X"]\n',
    "environment.yaml": "name: train",
    "tokenizer.json": "{}",
    "wandb/settings.py": "KEY = 'ghp_...'",
}


def given(root: Path, name: str, content: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    given(tmp_path, "train.py", "x = 1\n")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_credentials_is_refused_by_name_with_two_ways_out(project: Path, name: str) -> None:
    given(project, name, FILES[name])
    with pytest.raises(UsageError) as refused:
        pack(str(project))
    assert f"'{name}'" in refused.value.message
    assert ".ddpignore" in refused.value.hint
    (project / ".ddpignore").write_text(f"/{name}\n")
    assert name not in names_in(pack(str(project)))
    (project / ".ddpignore").write_text(f"!{name}\n")
    assert name in names_in(pack(str(project)))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_file_that_only_looks_like_one_travels(project: Path, name: str) -> None:
    given(project, name, HARMLESS[name])
    assert name in names_in(pack(str(project)))


def test_what_git_ignores_needs_no_word_and_what_git_brings_back_does(project: Path) -> None:
    given(project, ".env", "A=1")
    (project / ".gitignore").write_text(".env\n")
    assert names_in(pack(str(project))) == [".gitignore", "train.py"]
    (project / ".gitignore").write_text("!.env\n")
    with pytest.raises(UsageError, match=r"'\.env'"):
        pack(str(project))


def test_a_script_with_a_key_is_refused_and_may_be_allowed_beside_it(project: Path) -> None:
    given(project, "run.py", f'KEY = """\n{PEM}"""\n')
    with pytest.raises(UsageError, match=r"run\.py"):
        read_script(str(project / "run.py"))
    assert read_script(str(project / "train.py")).text == "x = 1\n"
    (project / ".ddpignore").write_text("!run.py\n")
    assert PEM in read_script(str(project / "run.py")).text


def test_many_files_are_one_sentence(project: Path) -> None:
    for name, content in FILES.items():
        given(project, name, content)
    with pytest.raises(UsageError, match=f"and {len(FILES) - 5} more files") as refused:
        pack(str(project))
    assert "\n" not in str(refused.value)
