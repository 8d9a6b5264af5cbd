"""Which files of a directory travel with a job, and how a job mounts them."""

import subprocess
from base64 import b64decode
from pathlib import Path
from random import Random

import pytest

from ddpjob.client.files import MAX_FILES, config_map_of, read_folder, secret_names, with_files

JOB = {"metadata": {"name": "j"}, "spec": {"command": ["python", "train.py"]}}


def tree(folder: Path, *paths: str) -> Path:
    """A directory with these files."""
    for path in paths:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return folder


@pytest.mark.parametrize(
    ("gitignore", "ddpjobignore", "selected"),
    [
        ("", "", ["data/a.csv", "data/b.csv", "model.pt", "net/layers.py", "train.py"]),
        ("*.pt\n# comment\n", "", ["data/a.csv", "data/b.csv", "net/layers.py", "train.py"]),
        ("data/\n", "", ["model.pt", "net/layers.py", "train.py"]),
        ("", "data/*\n!data/b.csv\n/model.pt\n", ["data/b.csv", "net/layers.py", "train.py"]),
        ("*.pt\n", "!model.pt\n", ["data/a.csv", "data/b.csv", "model.pt", "net/layers.py", "train.py"]),
        ("*\n!*.py\n!net/\n", "", ["net/layers.py", "train.py"]),
        ("", "!.env\n*.csv\n*.pt\n", [".env", "net/layers.py", "train.py"]),
    ],
)
def test_ignored_and_hidden_files_stay(tmp_path: Path, gitignore: str, ddpjobignore: str, selected: list[str]) -> None:
    tree(tmp_path, "train.py", "net/layers.py", "data/a.csv", "data/b.csv", "model.pt")
    tree(tmp_path, ".env", ".git/config", ".venv/lib/x.py", "net/__pycache__/layers.pyc")
    (tmp_path / ".gitignore").write_text(gitignore)
    (tmp_path / ".ddpjobignore").write_text(ddpjobignore)
    assert sorted(read_folder(tmp_path)) == selected


PATTERNS = [
    *(
        "*",
        "!*.py",
        "!net/",
        "*.[co]",
        "[!a]*.c",
        "a?c",
        "/a",
        "a/",
        "a/b",
        "**/b",
        "a/**",
        "a/**/c",
        "\\!b",
        "#x",
        "\\#x",
    ),
    *("!a", "b\\ ", "c   ", "*/c", "**", "a**c", "[a-b]", "!a/**", "net/*", "!net/keep.py", "/*.py", "[]x]", "[^b].o"),
]
PATHS = ["a/b/c", "a/c", "b", "c", "abc", "net/keep.py", "net/x.py", "net/y.c", "x.o", "#x", "!b", "b ", "train.py"]
PATHS += ["n/a/b.c"]


def test_patterns_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    tree(tmp_path, *PATHS)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    random = Random(0)  # noqa: S311  # the same patterns in each run
    for _ in range(60):
        lines = random.sample(PATTERNS, k=random.randint(1, 4))
        (tmp_path / ".gitignore").write_text("\n".join(lines))
        command: list[str | Path] = [
            "git",
            "-C",
            tmp_path,
            "ls-files",
            "-z",
            "--others",
            "--exclude-standard",
            ":!.gitignore",
        ]
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")[:-1]
        found = _names(tmp_path)
        assert found == sorted(listed), lines


def _names(folder: Path) -> list[str]:
    try:
        return sorted(set(read_folder(folder)) - {".gitignore"})
    except ValueError:  # no file is left
        return []


def test_rules_of_sub_directories_and_of_the_repository_above_count(tmp_path: Path) -> None:
    tree(tmp_path, ".git/config", "project/train.py", "project/out.log", "project/net/keep.log", "project/net/w.bin")
    (tmp_path / ".gitignore").write_text("*.log\n/train.py\n")
    (tmp_path / "project/net/.gitignore").write_text("!keep.log\nw.bin\n")
    assert sorted(read_folder(tmp_path / "project")) == ["net/keep.log", "train.py"]


def test_links_to_files_that_are_sent_are_followed_and_those_to_directories_are_not(tmp_path: Path) -> None:
    tree(tmp_path, "train.py")
    (tmp_path / "link.py").symlink_to("train.py")
    (tmp_path / "loop").symlink_to(".")
    assert read_folder(tmp_path) == {"link.py": b"x", "train.py": b"x"}


@pytest.mark.parametrize("target", ["/proc/self/environ", "/etc/passwd", "../key", ".env", "ignored.txt", "second"])
def test_a_link_to_a_file_that_is_not_sent_is_refused(tmp_path: Path, target: str) -> None:
    """Git keeps links, so a repository of somebody else could name any file of the user."""
    here = tree(tmp_path / "here", "train.py", ".env", "ignored.txt", "../key")
    (here / ".gitignore").write_text("ignored.txt\n/second\n")
    (here / "second").symlink_to("../key")
    (here / "notes.txt").symlink_to(target)
    with pytest.raises(ValueError, match=r"notes.txt is a link to .*; replace the link by the file, or exclude it"):
        read_folder(here)


@pytest.mark.parametrize(
    ("names", "are_secret"),
    [
        (
            ["id_rsa", "a/id_ed25519", "server.pem", "prod.env", "kubeconfig", "credentials.json", "aws-credentials"],
            True,
        ),
        (
            [".env.local", "hf_token", "token.txt", "my-secrets.yaml", "service-account.json", "private_key", "x.P12"],
            True,
        ),
        (
            ["train.py", "tokenizer.json", "special_tokens_map.json", "token.py", "secrets.py", "keys.txt", "env.md"],
            False,
        ),
        (["environment.yml", "monkey.txt", "passwordless.md", "id_rsa.pub", "tokens.bin"], False),
    ],
)
def test_names_that_look_like_secrets_are_found(names: list[str], *, are_secret: bool) -> None:
    assert secret_names(names) == (sorted(names) if are_secret else [])


def test_what_does_not_fit_names_the_largest_files_and_the_ways_out(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "small.txt")
    (tmp_path / "weights.bin").write_bytes(b"x" * (1024 * 1024))
    ways = r"largest are weights.bin \(1.0 MiB\), .*\.ddpjobignore.*image.*volume.*init container"
    with pytest.raises(ValueError, match=rf"3 files of 1.0 MiB, and a job takes at most 500 .*{ways}"):
        read_folder(tmp_path)
    tree(tmp_path / "many", *(f"{number}.py" for number in range(MAX_FILES + 2)))
    with pytest.raises(ValueError, match="found more than 500 files"):
        read_folder(tmp_path / "many")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="found no file to send"):
        read_folder(tmp_path / "empty")


def test_each_file_is_mounted_at_its_path() -> None:
    files = {"train.py": b"text", "a/b.py": b"1", "a_b.py": b"2", "ü/leer zeichen.bin": b"\xff\x00"}
    job = with_files(JOB, files)
    config_map = config_map_of(job, files)
    pod = job["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == config_map["metadata"]["name"]
    contents = {key: text.encode() for key, text in config_map["data"].items()}
    contents |= {key: b64decode(text) for key, text in config_map["binaryData"].items()}
    assert {item["path"]: contents[item["key"]] for item in pod["volumes"][0]["configMap"]["items"]} == files
    mount = {"name": "ddpjob-files", "mountPath": "/workspace", "readOnly": True}
    assert pod["containers"] == [{"name": "trainer", "workingDir": "/workspace", "volumeMounts": [mount]}]


def test_the_template_of_the_job_is_kept() -> None:
    main = {"name": "trainer", "env": [{"name": "A"}], "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}
    side = {"name": "side"}
    pod = {"containers": [side, main], "volumes": [{"name": "cache"}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    changed = with_files({**JOB, "spec": {"template": template}}, {"train.py": b""})["spec"]["template"]
    assert changed["metadata"] == template["metadata"]
    assert [volume["name"] for volume in changed["spec"]["volumes"]] == ["cache", "ddpjob-files"]
    by_name = {container["name"]: container for container in changed["spec"]["containers"]}
    assert by_name["side"] == side
    assert by_name["trainer"]["env"] == main["env"]
    assert [mount["mountPath"] for mount in by_name["trainer"]["volumeMounts"]] == ["/cache", "/workspace"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.py", "a/../../up.py", ""])
def test_a_path_outside_of_the_directory_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        with_files(JOB, {path: b""})
