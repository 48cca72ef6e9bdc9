"""Sources of the coordinator's address and token, and their precedence."""

from pathlib import Path

import pytest

from muster.client import SettingsError, config, load_settings
from muster.client.config import DEFAULT_URL, client_file_path

ENV = {"MUSTER_TOKEN": "from-env"}


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = written(tmp_path / "client.yaml", "url: http://127.0.0.1:1\ntoken: from-file\n")
    token_file = written(tmp_path / "token", "from-flag\n")
    base = {"MUSTER_CONFIG": str(file)}
    assert load_settings({"HOME": str(tmp_path), **ENV}).url == DEFAULT_URL
    found = load_settings(base)
    assert (found.url, found.token) == ("http://127.0.0.1:1", "from-file")
    found = load_settings(base | ENV | {"MUSTER_URL": "http://127.0.0.1:2"})
    assert (found.url, found.token) == ("http://127.0.0.1:2", "from-env")
    found = load_settings(
        base | ENV | {"MUSTER_URL": "http://127.0.0.1:2"},
        url="http://127.0.0.1:3/",
        token_file=token_file,
    )
    assert (found.url, found.token) == ("http://127.0.0.1:3", "from-flag")


def test_the_file_is_found_in_the_users_folder(tmp_path: Path) -> None:
    assert client_file_path({"HOME": "/home/a"}) == Path("/home/a/.config/muster/client.yaml")
    assert client_file_path({"HOME": "/home/a", "XDG_CONFIG_HOME": "/x"}) == Path(
        "/x/muster/client.yaml"
    )
    folder = tmp_path / ".config" / "muster"
    folder.mkdir(parents=True)
    written(folder / "token", "beside")
    written(folder / "client.yaml", "token_file: token\n")
    assert load_settings({"HOME": str(tmp_path)}).token == "beside"


def test_the_files_token_is_sent_to_its_own_coordinator_only(tmp_path: Path) -> None:
    file = written(tmp_path / "client.yaml", "url: https://a:1\ntoken: secret-word\n")
    with pytest.raises(SettingsError, match="is not sent to https://b:1") as caught:
        load_settings({"MUSTER_CONFIG": str(file), "MUSTER_URL": "https://b:1"})
    assert "secret-word" not in str(caught.value)


def test_no_token_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no token") as caught:
        load_settings({"HOME": str(tmp_path)})
    assert "muster login" in caught.value.hint


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    file = written(tmp_path / "client.yaml", "token: x\n", 0o644)
    (warning,) = load_settings({"MUSTER_CONFIG": str(file)}).warnings
    assert f"chmod 600 {file}" in warning


@pytest.mark.parametrize(
    "text",
    [
        "token: [secret-word\n",
        "tokn: secret-word\n",
        "- secret-word\n",
        "token: {a: secret-word}\n",
    ],
)
def test_a_broken_file_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    file = written(tmp_path / "client.yaml", text)
    with pytest.raises(SettingsError, match="not a client configuration") as caught:
        load_settings({"MUSTER_CONFIG": str(file)})
    assert "secret-word" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("token", ["two words", "line\nInjected: x", "\x1b[31m", "ü"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="MUSTER_TOKEN does not contain a token"):
        load_settings({"MUSTER_TOKEN": token, "HOME": "/nonexistent"})


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:7077",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:x",
        "https://u@h",
        "https://h/p",
        "https://a..b:7077",
        f"https://{'x' * 64}.example:7077",
    ],
)
def test_a_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="the address"):
        load_settings(ENV | {"HOME": "/nonexistent"}, url=url)


@pytest.mark.parametrize(
    "url", ["http://[::1]:7077", "http://localhost:1", "https://[2001:db8::1]:9"]
)
def test_urls_of_this_machine_and_over_tls_are_taken(url: str) -> None:
    assert load_settings(ENV | {"HOME": "/nonexistent"}, url=url).url == url


def test_the_token_is_not_in_what_a_log_would_show() -> None:
    assert "from-env" not in repr(load_settings(ENV | {"HOME": "/nonexistent"}))


@pytest.mark.parametrize(
    "text",
    [
        'url: "http://127.0.0.1:7077"\ntoken: "muster_admin_ab_cd"\n',
        '# made by muster init\n\nurl: "https://höst:1"\nca: "/a b/ca.pem"\n',
        'token: "a\\u0041\\n\\"b"\n',
        "",
    ],
)
def test_a_file_as_we_write_it_needs_no_yaml_and_means_the_same(tmp_path: Path, text: str) -> None:
    plain = config._read_plain(text.encode())
    assert plain is not None
    assert plain == config._read_yaml(tmp_path, text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "url: http://127.0.0.1:7077\n",
        'url: "http://a" # not the end\n',
        'url: "a"\nurl: "b"\n',
        'url: "a"\n  more: "b"\n',
        '{"url": "a"}\n',
        "url: |\n  a\n",
        'port: "1"\n',
        "token: 12\n",
        "---\n",
        "\ufeff",
    ],
)
def test_any_other_value_is_read_as_yaml(text: str) -> None:
    assert config._read_plain(text.encode()) is None
