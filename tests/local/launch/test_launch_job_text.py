"""A worker's error message is the same in every output of the launcher: without secrets and terminal controls."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.launch_harness import LAUNCH
from tests.support.secret_corpus import CONTROLS, SECRETS, WORD, raw_controls

FAILS = """
import json, os, sys, pathlib
text = pathlib.Path(sys.argv[1]).read_text(newline="")
error = {"message": text, "extraInfo": {"py_callstack": text, "timestamp_ns": "1"}}
pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": error}))
os._exit(3)
"""


def test_error_file_termination_message_and_log_agree_and_keep_no_secret(tmp_path: Path) -> None:
    controls, last = "".join(CONTROLS.values()), SECRETS["PEM without an end"]
    secrets = [secret for secret in SECRETS.values() if secret != last]
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "message").write_text(f"ValueError: {controls}\n" + "\n\n".join([*secrets, last]), newline="")
    termination = tmp_path / "termination-log"
    ended = subprocess.run(
        [*LAUNCH, "--standalone", "--max-restarts", "0", str(tmp_path / "fails.py"), str(tmp_path / "message")],
        env={"PATH": "/usr/bin:/bin", "DDP_RUN_DIR": str(tmp_path / "run"), "DDP_TERMINATION_LOG": str(termination)},
        check=False, capture_output=True, timeout=120,
    )  # fmt: skip
    log = ended.stderr.decode()
    error = json.loads((tmp_path / "run" / "error.json").read_text())
    message = json.loads(termination.read_text())
    assert (error["message"][:60], error["type"]) == (message["message"][:60], message["type"])
    assert error["message"].partition("\n")[0] in log
    for text in (log, termination.read_text(), error["message"], error["stack"], message["message"], message["stack"]):
        assert WORD not in text
        assert raw_controls(text) == set()
