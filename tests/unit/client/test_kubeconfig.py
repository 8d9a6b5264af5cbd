"""Which cluster and namespace a kubeconfig leads to; kubectl is the model."""

from pathlib import Path

import pytest
import yaml

from ddpjob.client import AsyncClient, UnreachableError


def kubeconfig(folder: Path, name: str, *, current: str | None = None) -> Path:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example"}}],
        "users": [{"name": name, "user": {"token": "t"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}],
        **({"current-context": current} if current else {}),
    }
    file = folder / name
    file.write_text(yaml.safe_dump(body))
    return file


@pytest.mark.parametrize(
    ("context", "namespace", "server", "chosen"),
    [
        (None, None, "https://a.example", "of-a"),
        ("b", None, "https://b.example", "of-b"),
        (None, "mine", "https://a.example", "mine"),
    ],
)
async def test_the_first_current_context_of_several_files_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    context: str | None,
    namespace: str | None,
    server: str,
    chosen: str,
) -> None:
    files = [tmp_path / "absent", kubeconfig(tmp_path, "a", current="a"), kubeconfig(tmp_path, "b", current="b")]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    async with AsyncClient(context=context, namespace=namespace) as client:
        assert (client.server, client.namespace) == (server, chosen)


async def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="a: found no context nowhere; expected one of: a; choose"):
        async with AsyncClient(kubeconfig=str(kubeconfig(tmp_path, "a", current="a")), context="nowhere"):
            pass
