"""Secrets as jobs write them, terminal controls, and text that only looks like either."""

from __future__ import annotations

from typing import Final

WORD: Final = "Qz7battery9horseX"
"""Part of every secret here, so that one search finds a leak."""
LONG: Final = f"{WORD}a1B2c3D4e5F6g7H8"

SECRETS: Final = {
    "variable": f"MYSQL_PWD={WORD}",
    "variable of a service": f"WANDB_KEY={WORD}",
    "variable of an API": f"export OPENAI_API_KEY='{WORD}'",
    "variable of a token": f"HUB_TOKEN={WORD}",
    "variable of a passphrase": f"GPG_PASSPHRASE={WORD}",
    "flag as one word": f"train.py --db-pass={WORD} --epochs 3",
    "flag as two words": f"train.py --db-pass {WORD} --epochs 3",
    "flag of one letter for user and password": f"curl -u admin:{WORD} example.com",
    "flag in a list of JSON": f'["python", "train.py", "--db-pass", "{WORD}"]',
    "flag in a list of YAML": f"args:\n- --db-pass\n- {WORD}\n- --epochs",
    "flag in a list of Python": f"argv: ['train.py', '--api-key', '{WORD}']",
    "variable in a list of Kubernetes": f'{{"name": "DB_PASSWORD", "value": "{WORD}"}}',
    "variable in a list of YAML": f"env:\n- name: DB_PASSWORD\n  value: {WORD}",
    "field of JSON": f'{{"password": "{WORD}", "step": 3}}',
    "field of JSON in JSON": f'{{"message": "{{\\"api_key\\": \\"{WORD}\\"}}"}}',
    "field in camel case": f"clientSecret: {WORD}",
    "value with spaces": f'password="correct {WORD} staple"',
    "user and password of a URL": f"postgres://me:{WORD}@db.example.com/train",
    "token of a URL": f"git clone https://{WORD}@git.example.com/a.git",
    "password with an at sign": f"redis://:p@{WORD}@cache.example.com",
    "signed URL of S3": f"https://s3.example.com/k?X-Amz-Date=1&X-Amz-Signature={WORD}",
    "signed URL of Azure": f"https://blob.example.com/c?sv=1&sig={WORD}%3D&se=2",
    "parameter of a URL": f"https://api.example.com/v1?access_token={WORD}&x=1",
    "header Authorization": f"Authorization: Bearer {WORD}",
    "header Authorization, basic": f"> authorization: Basic {WORD}==",
    "header X-Api-Key": f"-H 'X-Api-Key: {WORD}'",
    "header Cookie": f"Cookie: a=1; id={WORD}",
    "bearer alone": f"sent bearer {WORD}",
    "AWS access key": "AKIA" + WORD.upper()[:16],
    "AWS secret key": f"aws_secret_access_key = {WORD}/abc+d",
    "Azure connection string": f"DefaultEndpointsProtocol=https;AccountKey={WORD}==;EndpointSuffix=example.com",
    "Google API key": f"AIza{LONG}{WORD}",
    "GCP service account": f'{{"private_key": "-----BEGIN PRIVATE KEY-----\\n{WORD}\\n-----END PRIVATE KEY-----\\n"}}',
    "PEM": f"-----BEGIN RSA PRIVATE KEY-----\nMIIB{WORD}\n-----END RSA PRIVATE KEY-----",
    "PEM without an end": f"-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl{WORD}",
    "GitHub token": f"ghp_{LONG}",
    "GitHub token, fine-grained": f"github_pat_{LONG}",
    "GitLab token": f"glpat-{LONG}",
    "Hugging Face token": f"hf_{LONG}",
    "Slack token": f"xoxb-{LONG}",
    "Slack webhook": f"https://hooks.slack.com/services/T0/B0/{WORD}",
    "OpenAI token": f"using sk-{LONG}",
    "token after a colour": f"\x1b[32msk-{LONG}",
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIi{WORD}.c2ln",
    "npm token": f"//registry.example.com/:_authToken={WORD}",
    "PyPI token": f"pypi-{LONG}{WORD}",
    "kubeconfig": f"users:\n- name: me\n  user:\n    client-key-data: {WORD}",
    "kubeconfig token": f"    token: {WORD}",
    "docker config": f'{{"auths": {{"registry.example.com": {{"auth": "{WORD}"}}}}}}',
    "printed by wandb": f"wandb: API key: {WORD}",
    "variable and a space": f"env WANDB_API_KEY {WORD}a1",
    "variable of one word": f"PGPASSWORD={WORD} psql",
    "two words before a colon": f"Secret Key = {WORD}",
    "Docker token": f"dckr_pat_{LONG}",
    "NVIDIA token": f"nvapi-{LONG}{WORD}",
    "sshpass": f"sshpass -p {WORD} ssh example.com",
    "mysql": f"mysql -u root -p{WORD} train",
    "docker login": f"docker login registry.example.com -u me -p {WORD}",
    "redis-cli": f"redis-cli -h cache.example.com -a {WORD}",
    "full-width letters": f"\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1d{WORD}",
    "a name with an invisible character": f"pass\u200bword={WORD}",
    "netrc": f"machine example.com login me password {WORD}",
}

HARMLESS: Final = (
    "the value of --password looks like a secret, and --db-pass must not stand here",
    "tokens=512 tokens/s 1234.5 token=17",
    "python train.py --tokenizer gpt2 --max-tokens 2048 --pad-token <pad>",
    "key_size=64 num_heads=8 cache_key=abc sort_key: name",
    "12 passed, 1 failed in 3.4s",
    "keyboard interrupt; monkey=banana; turkey: 1",
    "forward_pass=0.31 backward_pass=0.52 passes: 3",
    "the tokenizer token count is 12345678",
    "secret sharing is a field, and a basic training run is none",
    'Error: secret "hub" not found; secretName: hub; serviceAccountToken mounted',
    'MountVolume.SetUp failed for volume "hub" : secret "hub" not found',
    "KeyError: 'api_key'",
    "kubectl ddp submit --secret-env HF_HOME=hub:home",
    "disk-encryption-of-a-very-long-name task-0123456789-0123456789-abc",
    "step 10: loss 0.5 grad_norm 1.2e-3 throughput 1,024 tokens/s",
    'ddp_step_seconds_bucket{rank="0",le="0.5"} 12',
    (
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    token = get_token(args.name)\n'
        "    password = os.environ[name]\n    model(token=token_ids, key=value)\nValueError: bad shape (3, 4)"
    ),
    "GOOGLE_APPLICATION_CREDENTIALS_FILE=/var/run/key.json PWD=/workspace",
    "author: Ada, authors=3, authentic; design: new; signal: 9; sigma=0.3",
    "http://example.com:8080/metrics and s3://bucket/key=1/part",
    "emails: me@example.com, image registry.example.com/a@sha256:0123",
    "def f(token: str, secret: bytes) -> None",
    "passwords are not shown; password: ${DB_PASSWORD}",
    "WANDB_API_KEY is not set, and HF_TOKEN needs a value; the key is a name, and a sort key: name",
    "mysql tracks nothing; docker login failed, see -p; ls -a /data; \uff46\uff55\uff4c\uff4c and zero\u200bwidth",
)

CONTROLS: Final = {
    "clipboard (OSC 52)": "\x1b]52;c;ZWNobyBoaQ==\x07",
    "title (OSC 0)": "\x1b]0;root@host\x1b\\",
    "link (OSC 8)": "\x1b]8;;https://evil.example.com\x1b\\",
    "clear (CSI)": "\x1b[2J\x1b[H",
    "hidden text (SGR)": "\x1b[8m",
    "device string (DCS)": "\x1bP1$r\x1b\\",
    "reset": "\x1bc",
    "bell": "\x07",
    "backspace": "\x08\x08\x08",
    "vertical tab and form feed": "\x0b\x0c",
    "shift out": "\x0e",
    "null": "\x00",
    "delete": "\x7f",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d0;x\x9c",
    "next line": "\x85",
    "override": "\u202egpj.exe\u202c",
    "isolate": "\u2066a\u2069",
    "marks": "\u200e\u200f\u061c",
    "invisible": "\u200b\ufeff",
    "line separators": "\u2028\u2029",
}
"""Each is shown escaped, never sent to a terminal."""


def raw_controls(text: str) -> set[str]:
    """The controls in a text that a terminal would obey, newline and tab aside."""
    everything = {character for control in CONTROLS.values() for character in control if not character.isprintable()}
    return {character for character in text if character in everything or character == "\r"}
