"""Start-up kits: NVFlare's own provisioning, and a folder per participant with what that one needs and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError

PROJECT = """\
api_version: 3
name: {name}
description: fedbilevel
participants:
  - {{name: {host}, type: server, org: {name}, fed_learn_port: {port}, admin_port: {port}}}
{sites}
  - {{name: admin@{name}.org, type: admin, org: {name}, role: project_admin}}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {{template_file: [master_template.yml]}}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {{config_folder: config, scheme: {scheme}}}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
"""
KIT = ("rootCA.pem", "client.crt", "client.key", "server.crt", "server.key")


def provision(folders: dict[str, Path], host: str, sites: Sequence[str], port: int = 8002, scheme: str = "tcp") -> None:
    """Certificates of a new federation: each participant's into `startup` of its folder, readable by its owner alone.
    folders: by site, and "server"."""
    orgs = {site: site.replace("-", "_") for site in sites}  # of an organisation NVFlare takes no hyphen
    listed = "\n".join(f"  - {{name: {site}, type: client, org: {orgs[site]}}}" for site in sites)
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "project.yml"
        project.write_text(PROJECT.format(name="federation", host=host, port=port, scheme=scheme, sites=listed))
        command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", scratch]
        done = subprocess.run(command, capture_output=True, text=True)
        made = Path(scratch) / "federation" / "prod_00"
        if done.returncode or not made.is_dir():
            raise UserError(f"nvflare provision failed: {(done.stderr or done.stdout).strip()[-500:]}")
        for name, folder in folders.items():
            kit = folder / "startup"
            kit.mkdir(parents=True, exist_ok=True)
            for file in KIT:
                source = made / (host if name == "server" else name) / "startup" / file
                if source.is_file():
                    shutil.copyfile(source, kit / file)
                    (kit / file).chmod(0o600)
