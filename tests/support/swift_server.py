"""OpenStack Swift with its S3 interface, as one process.

Run as ``python swift_server.py DIRECTORY PORT_FILE`` in the environment ``build/stores``. The proxy and the account,
container and object servers are those of the package ``swift``. All listen on 127.0.0.1 and keep their files in
DIRECTORY, whose file system must have extended attributes. PORT_FILE gets the port of the proxy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import eventlet

eventlet.monkey_patch()

from eventlet import listen, wsgi  # noqa: E402 - swift is imported after the patch
from swift.common import utils  # noqa: E402
from swift.common.ring.builder import RingBuilder  # noqa: E402
from swift.common.wsgi import loadapp  # noqa: E402

_PROXY = """
[DEFAULT]
swift_dir = {etc}
[pipeline:main]
pipeline = catch_errors gatekeeper listing_formats bulk s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
"""
_FILTERS = ("catch_errors", "gatekeeper", "listing_formats", "bulk", "copy", "slo", "dlo")
_STORAGE = """
[DEFAULT]
devices = {devices}
mount_check = false
swift_dir = {etc}
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
disk_chunk_size = 1048576
"""


def main(root: Path, port_file: Path) -> None:
    etc, devices = root / "etc", root / "devices"
    etc.mkdir(parents=True)
    (devices / "disk").mkdir(parents=True)
    # Swift reads /etc/swift by default.
    utils.SWIFT_CONF_FILE, utils.HASH_PATH_SUFFIX = str(etc / "swift.conf"), b"tests"
    (etc / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
    for kind in ("account", "container", "object"):
        socket = listen(("127.0.0.1", 0))
        place = {"ip": "127.0.0.1", "port": socket.getsockname()[1], "device": "disk", "region": 1, "zone": 1}
        builder = RingBuilder(part_power=2, replicas=1, min_part_hours=0)
        builder.add_dev({"id": 0, "weight": 1.0, **place})
        builder.rebalance()
        builder.get_ring().save(str(etc / f"{kind}.ring.gz"))
        serve(socket, etc / f"{kind}.conf", _STORAGE.format(devices=devices, etc=etc, kind=kind))
    filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in _FILTERS)
    proxy = listen(("127.0.0.1", 0))
    served = serve(proxy, etc / "proxy.conf", _PROXY.format(etc=etc) + filters)
    port_file.with_suffix(".tmp").write_text(str(proxy.getsockname()[1]))
    port_file.with_suffix(".tmp").rename(port_file)
    served.wait()


def serve(socket: eventlet.greenio.GreenSocket, file: Path, conf: str) -> eventlet.greenthread.GreenThread:
    file.write_text(conf)
    return eventlet.spawn(wsgi.server, socket, loadapp(str(file)), log_output=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
