"""An in-memory Hugging Face Hub on localhost for the real client: repositories, branches, tags, LFS, tokens, faults.

It answers the requests with which `huggingface_hub`, `transformers` and `datasets` create, list, push to and read from
repositories; it records them, and any one of them can be made to fail. `tests/conftest.py` starts one and has the fixture
`hub`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = (
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pkl",
    "*.parquet",
    "*.arrow",
    "*.npz",
    "*.gz",
    "*.zst",
    "*.model",
)  # Stored as LFS.
# Variables from which a process learns the logged-in user and the cache; `constants` has what libraries derived from them.
VARIABLES = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HOME")
DATE = "2026-01-01T00:00:00.000Z"
PAGES = {"model": "", "dataset": "datasets/", "space": "spaces/"}
REPO = r"(?P<kind>models|datasets|spaces)/(?P<name>[^/]+/[^/]+)"
FILE = r"/(?P<kind>datasets/|spaces/)?(?P<name>[^/]+/[^/]+)"


class Refusal(Exception):
    """Raised to send an error as the response."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str):
        super().__init__(message)
        self.status, self.message, self.code, self.headers = status, message, code, headers


@dataclass(frozen=True)
class User:
    name: str
    organisations: tuple[str, ...] = ()
    role: str = "write"  # or "read"

    def owns(self, namespace: str) -> bool:
        return namespace in (self.name, *self.organisations)


@dataclass(frozen=True)
class Blob:
    """A file's content, and whether it is kept as an LFS object."""

    data: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @property
    def oid(self) -> str:
        """Git's id of the blob."""
        data = self.pointer if self.large else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Commit:
    id: str
    parent: str | None
    title: str
    author: str
    files: Mapping[str, Blob]


@dataclass
class Repository:
    name: str
    type: str
    private: bool = False
    gated: str | bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def find(self, revision: str) -> Commit:
        commit = self.branches.get(revision) or self.tags.get(revision) or revision
        if commit not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[commit]

    def history(self, revision: str = "main") -> list[Commit]:
        """Return the commits, newest first."""
        commits, commit = [], self.find(revision)
        while True:
            commits.append(commit)
            if commit.parent is None:
                return commits
            commit = self.commits[commit.parent]


@dataclass
class Fault:
    when: int | Callable[[str, str], bool]
    how: str | int
    times: int


class LoopbackHub:
    """The store, the log of requests, and the server.

    Attributes:
        log: (method, path with query) of every request since the last `reset`.
        part_size: bytes; larger LFS objects are uploaded in parts.
        page_size: entries per page of a listing.
        retry_after: seconds in the Retry-After header of an injected 429.
    """

    def __init__(self):
        # Reserve the port for this process; nothing answers there before `start`.
        self._server = _Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._started = False
        self.lock = threading.RLock()
        self.reset()

    def start(self) -> None:
        if not self._started:
            self._server.server_activate()
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            self._started = True

    def reset(self) -> None:
        with self.lock:
            self.users: dict[str, User] = {}
            self.repositories: dict[tuple[str, str], Repository] = {}
            self.objects: dict[str, bytes] = {}
            self.parts: dict[tuple[str, int], bytes] = {}
            self.log: list[tuple[str, str]] = []
            self.faults: list[Fault] = []
            self.granted: set[tuple[str, str]] = set()
            self.part_size, self.page_size, self.retry_after = 1 << 20, 1000, 3

    def add_user(self, name: str, organisations: tuple[str, ...] = (), role: str = "write") -> str:
        """Create a token for a user, new or not; a user may have several, with different roles."""
        token = f"hf_{name}{secrets.token_hex(12)}"
        self.users[token] = User(name, tuple(organisations), role)
        return token

    def grant(self, user: str, name: str) -> None:
        """Give a user access to a gated repository."""
        self.granted.add((user, name))

    def fail(self, when: int | Callable[[str, str], bool], how: str | int, times: int = 1) -> None:
        """Make requests fail.

        Args:
            when: the n-th request since the last `reset` or clearing of `log` (1 is the first), or a predicate of
                method and path.
            how: a status (429 with Retry-After); "reset": the connection breaks before the request takes effect; "lost":
                the request takes effect, and the response is lost; "truncate": the connection breaks within the body;
                "page": a gateway's error page with status 502; "html": a page with status 200.
            times: number of matching requests, or of requests from the n-th on.
        """
        self.faults.append(Fault(when, how, times))

    def put(
        self, name: str, files: Mapping[str, bytes | str], type: str = "model", revision: str = "main", **settings
    ) -> str:
        """Commit files without a request, creating the repository and the branch if needed; return the commit id."""
        repository = self.repositories.get((type, name)) or self.create(name, type)
        for key, value in settings.items():
            setattr(repository, key, value)
        repository.branches.setdefault(revision, repository.branches["main"])
        blobs = {path: c.encode() if isinstance(c, str) else c for path, c in files.items()}
        changes = {path: Blob(data, is_large(path)) for path, data in blobs.items()}
        self.objects.update({blob.sha256: blob.data for blob in changes.values() if blob.large})
        return self.commit(repository, revision, "put", "system", changes).id

    def create(self, name: str, type: str = "model", private: bool = False) -> Repository:
        repository = self.repositories[type, name] = Repository(name, type, private)
        attributes = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE)
        self.commit(repository, "main", "initial commit", "system", {".gitattributes": Blob(attributes.encode(), False)})
        return repository

    def commit(
        self, repository: Repository, branch: str, title: str, author: str, changes: Mapping[str, Blob | None]
    ) -> Commit:
        """Add a commit to a branch; `changes`: path -> new content, or None to delete it."""
        parent = repository.branches.get(branch)
        files = {**(repository.commits[parent].files if parent else {}), **changes}
        commit = Commit(secrets.token_hex(20), parent, title, author, {p: b for p, b in sorted(files.items()) if b})
        repository.commits[commit.id] = commit
        repository.branches[branch] = commit.id
        return commit

    def repository(self, name: str, type: str = "model") -> Repository:
        return self.repositories[type, name]

    def files(self, name: str, type: str = "model", revision: str = "main") -> dict[str, bytes]:
        """Return the contents of files at a revision, without `.gitattributes`."""
        files = self.repository(name, type).find(revision).files
        return {path: blob.data for path, blob in files.items() if path != ".gitattributes"}

    def history(self, name: str, type: str = "model", revision: str = "main") -> list[str]:
        """Return commit ids, newest first; the last one is the Hub's own initial commit."""
        return [commit.id for commit in self.repository(name, type).history(revision)]


def constants(cache: Path, offline: bool = False) -> dict[str, Any]:
    """Return dotted name -> value of the constants that libraries read from the environment when they are imported.

    Args:
        cache: the directory of HF_HOME.
        offline: True for the values without a running Hub.
    """
    return {
        "huggingface_hub.constants.HF_HUB_OFFLINE": offline,
        "huggingface_hub.constants.HF_HUB_CACHE": str(cache / "hub"),
        "datasets.config.HF_HUB_OFFLINE": offline,
        "datasets.config.HF_DATASETS_CACHE": cache / "datasets",
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)  # HTTPServer resolves its host name, which may take seconds.
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address):
        """Ignore errors: clients may disconnect at any time."""


def is_large(path: str) -> bool:
    return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in LARGE)


ROUTES: list[tuple[str, re.Pattern, Callable]] = []


def route(method: str, pattern: str):
    def register(function):
        ROUTES.append((method, re.compile(pattern + "$"), function))
        return function

    return register


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self):
        hub, url = self.server.hub, urlsplit(self.path)
        self.hub, self.query = hub, parse_qs(url.query)
        with hub.lock:
            hub.log.append((self.command, self.path))
            fault = self._fault()
        if fault == "truncate" and (length := int(self.headers.get("Content-Length") or 0)) > 1:
            self.rfile.read(length // 2)
            return self._break()
        self.body = self._read_body()
        if fault == "reset":
            return self._break()
        try:
            if fault == "page":
                raise Refusal(502, "<html>Bad gateway</html>")
            if fault == "html":
                raise Refusal(200, "<html>Welcome</html>")
            if isinstance(fault, int):
                wait = {"Retry-After": str(hub.retry_after)} if fault == 429 else {}
                raise Refusal(fault, f"injected {fault}", **wait)
            with hub.lock:
                status, headers, data = self._dispatch(url.path)
        except Refusal as refusal:
            status, data = refusal.status, json.dumps({"error": refusal.message}).encode()
            headers = {"X-Error-Message": refusal.message, **refusal.headers}
            if fault in ("page", "html"):
                data, headers = refusal.message.encode(), {"Content-Type": "text/html"}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
        if fault == "lost":
            return self._break()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data[: len(data) // 2] if fault == "truncate" else data)
        if fault == "truncate":
            self.wfile.flush()
            self._break()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def _fault(self) -> str | int | None:
        number = len(self.hub.log)
        for fault in self.hub.faults:
            if isinstance(fault.when, int):
                hit = fault.when <= number < fault.when + fault.times
            else:
                hit = fault.times > 0 and fault.when(self.command, self.path)
                fault.times -= hit
            if hit:
                return fault.how
        return None

    def _break(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _dispatch(self, path: str) -> tuple[int, dict[str, str], bytes]:
        for method, pattern, function in ROUTES:
            if (self.command == method or (self.command, method) == ("HEAD", "GET")) and (match := pattern.match(path)):
                result = function(self, **{key: value and unquote(value) for key, value in match.groupdict().items()})
                return result if isinstance(result, tuple) else (200, {}, json.dumps(result).encode())
        raise Refusal(404, f"no route for {self.command} {path}")

    # Authentication and permissions.

    def user(self) -> User | None:
        given = self.headers.get("Authorization")
        if given is None:
            return None
        if (user := self.hub.users.get(given.removeprefix("Bearer "))) is None:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return user

    def find(self, kind: str | None, name: str, write: bool = False, content: bool = False) -> Repository:
        """Return a repository that the user may see, write to (`write`), or read the files of (`content`)."""
        user, type = self.user(), (kind or "models").rstrip("/").removesuffix("s")
        repository = self.hub.repositories.get((type, name))
        owner = user is not None and user.owns(name.split("/")[0])
        if repository is None or (repository.private and not owner):
            # The Hub does not tell strangers whether a repository exists.
            raise Refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and not (owner and user.role == "write"):
            raise Refusal(403 if user else 401, "You have read access but not the required write access")
        if content and repository.gated and not owner and (user is None or (user.name, name) not in self.hub.granted):
            message = f"Access to {name} is restricted. " + ("Ask for access on its page." if user else "You must log in.")
            raise Refusal(403 if user else 401, message, "GatedRepo")
        return repository

    def json(self) -> dict:
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refusal(400, f"not JSON: {error}") from error

    def page(self, entries: list) -> tuple[int, dict[str, str], bytes]:
        """Return one page of a listing; the Link header points to the next one."""
        start, size = int(self.query.get("cursor", ["0"])[0]), self.hub.page_size
        headers = {}
        if start + size < len(entries):
            query = "&".join(f"{key}={quote(v)}" for key, (v, *_) in self.query.items() if key != "cursor")
            headers["Link"] = f'<{self.hub.url}{urlsplit(self.path).path}?{query}&cursor={start + size}>; rel="next"'
        return 200, headers, json.dumps(entries[start : start + size]).encode()

    # Accounts and repositories.

    @route("GET", "/api/whoami-v2")
    def whoami(self):
        user = self.user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        organisations = [{"type": "org", "name": name, "roleInOrg": "write"} for name in user.organisations]
        access = {"accessToken": {"displayName": "test", "role": user.role}}
        return {"type": "user", "id": user.name, "name": user.name, "orgs": organisations, "auth": access}

    @route("POST", "/api/validate-yaml")
    def validate_yaml(self):
        self.json()
        return {"errors": [], "warnings": []}

    @route("POST", "/api/repos/create")
    def create_repository(self):
        user, given = self.user(), self.json()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        owner, type = given.get("organization") or user.name, given.get("type") or "model"
        if not user.owns(owner) or user.role != "write":
            raise Refusal(403, f'You don\'t have the rights to create a {type} under the namespace "{owner}"')
        if type == "space" and given.get("sdk") != "static":
            raise Refusal(400, "A Space needs an SDK; this Hub has static ones.")
        name = f"{owner}/{given['name']}"
        url = f"{self.hub.url}/{PAGES[type]}{name}"
        if (type, name) in self.hub.repositories:
            body = json.dumps({"error": "You already created this repo", "url": url}).encode()
            return 409, {"X-Error-Message": "You already created this repo"}, body
        self.hub.create(name, type, given.get("visibility") == "private")
        return {"url": url, "name": name, "id": name}

    @route("DELETE", "/api/repos/delete")
    def delete_repository(self):
        given = self.json()
        name = f"{given.get('organization') or self.user().name}/{given['name']}"
        repository = self.find(f"{given.get('type') or 'model'}s", name, write=True)
        del self.hub.repositories[repository.type, name]
        return {}

    @route("PUT", f"/api/{REPO}/settings")
    def change_settings(self, kind, name):
        repository, given = self.find(kind, name, write=True), self.json()
        repository.gated = given.get("gated", repository.gated)
        if "visibility" in given:
            repository.private = given["visibility"] == "private"
        return {}

    def describe(self, repository: Repository, revision: str) -> dict:
        commit = repository.find(revision)
        siblings = [{"rfilename": path} for path in commit.files]
        if "blobs" in self.query:
            siblings = [
                {"rfilename": path, "size": len(blob.data), "blobId": blob.oid, **_lfs(blob, "sha256")}
                for path, blob in commit.files.items()
            ]
        about = {"_id": repository.name, "id": repository.name, "author": repository.name.split("/")[0], "sha": commit.id}
        state = {"private": repository.private, "gated": repository.gated, "disabled": False, "downloads": 0, "likes": 0}
        return {**about, **state, "tags": [], "siblings": siblings, "lastModified": DATE, "createdAt": DATE}

    @route("GET", f"/api/{REPO}(/revision/(?P<revision>[^/]+))?")
    def describe_repository(self, kind, name, revision):
        return self.describe(self.find(kind, name), revision or "main")

    # Revisions and listings.

    @route("GET", f"/api/{REPO}/refs")
    def list_references(self, kind, name):
        repository = self.find(kind, name)
        branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in repository.branches.items()]
        tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": c} for n, c in repository.tags.items()]
        return {"branches": branches, "tags": tags, "converts": [], "pullRequests": []}

    @route("GET", f"/api/{REPO}/commits/(?P<revision>[^/]+)")
    def list_commits(self, kind, name, revision):
        commits = self.find(kind, name).history(revision)
        keys = [{"id": c.id, "title": c.title, "authors": [{"user": c.author}]} for c in commits]
        return self.page([{**key, "message": "", "date": DATE} for key in keys])

    @route("POST", f"/api/{REPO}/branch/(?P<branch>[^/]+)")
    def create_branch(self, kind, name, branch):
        repository = self.find(kind, name, write=True)
        if branch in repository.branches:
            raise Refusal(409, f"Reference already exists: {branch}")
        repository.branches[branch] = repository.find(self.json().get("startingPoint") or "main").id
        return {}

    @route("DELETE", f"/api/{REPO}/branch/(?P<branch>[^/]+)")
    def delete_branch(self, kind, name, branch):
        repository = self.find(kind, name, write=True)
        if repository.branches.pop(branch, None) is None:
            raise Refusal(404, f"Reference does not exist: {branch}", "RevisionNotFound")
        return {}

    @route("POST", f"/api/{REPO}/tag/(?P<revision>[^/]+)")
    def create_tag(self, kind, name, revision):
        repository, tag = self.find(kind, name, write=True), self.json()["tag"]
        if tag in repository.tags:
            raise Refusal(409, f"Tag already exists: {tag}")
        repository.tags[tag] = repository.find(revision).id
        return {}

    @route("DELETE", f"/api/{REPO}/tag/(?P<tag>[^/]+)")
    def delete_tag(self, kind, name, tag):
        repository = self.find(kind, name, write=True)
        if repository.tags.pop(tag, None) is None:
            raise Refusal(404, f"Tag does not exist: {tag}", "RevisionNotFound")
        return {}

    @route("GET", f"/api/{REPO}/tree/(?P<revision>[^/]+)(/(?P<path>.*))?")
    def list_tree(self, kind, name, revision, path):
        files, prefix = self.find(kind, name).find(revision).files, f"{path}/" if path else ""
        deep = self.query.get("recursive", ["false"])[0].lower() == "true"
        listed = {}
        for file in files:
            if file.startswith(prefix):
                steps = file[len(prefix) :].split("/")
                for depth in range(1, len(steps) + 1 if deep else 2):
                    entry = prefix + "/".join(steps[:depth])
                    listed[entry] = _entry(entry, files)
        if path and not listed:
            raise Refusal(404, f"{path} does not exist", "EntryNotFound")
        return self.page(list(listed.values()))

    @route("POST", f"/api/{REPO}/paths-info/(?P<revision>[^/]+)")
    def list_paths(self, kind, name, revision):
        files = self.find(kind, name).find(revision).files
        if self.headers.get("Content-Type", "").startswith("application/json"):
            wanted = self.json()["paths"]
        else:
            wanted = parse_qs(self.body.decode()).get("paths", [])
        folders = {file[: match.start()] for file in files for match in re.finditer("/", file)}
        return [_entry(path, files) for path in wanted if path in files or path in folders]

    # Pushing: LFS objects first, then one commit.

    @route("POST", f"/api/{REPO}/preupload/(?P<revision>[^/]+)")
    def choose_upload_modes(self, kind, name, revision):
        files, chosen, given = self.find(kind, name, write=True).find(revision).files, [], self.json()
        ignored = files[".gitignore"].data.decode() if ".gitignore" in files else ""
        ignored = (given.get("gitIgnore") or ignored).split()
        for file in given["files"]:
            path, existing = file["path"], files.get(file["path"])
            oid = existing and (existing.sha256 if existing.large else existing.oid)
            mode = "lfs" if is_large(path) else "regular"
            ignore = any(fnmatch(path, pattern) for pattern in ignored)
            chosen.append({"path": path, "uploadMode": mode, "shouldIgnore": ignore, "oid": oid})
        return {"files": chosen}

    @route("POST", rf"{FILE}\.git/info/lfs/objects/batch")
    def plan_upload(self, kind, name):
        self.find(kind, name, write=True)
        planned = []
        for item in self.json()["objects"]:
            oid, size = item["oid"], item["size"]
            plan = {"oid": oid, "size": size, "authenticated": True}
            if oid not in self.hub.objects:
                upload = {"href": f"{self.hub.url}/lfs/{oid}"}
                if size > self.hub.part_size:
                    count = -(-size // self.hub.part_size)
                    parts = {str(part): f"{self.hub.url}/lfs/{oid}/{part}" for part in range(1, count + 1)}
                    upload["header"] = {"chunk_size": str(self.hub.part_size), **parts}
                verify = {"href": f"{self.hub.url}/{kind or ''}{name}.git/info/lfs/verify"}
                plan["actions"] = {"upload": upload, "verify": verify}
            planned.append(plan)
        return {"transfer": "basic", "objects": planned}

    def keep(self, oid: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refusal(400, f"the content is not that of {oid}")
        self.hub.objects[oid] = data

    @route("PUT", "/lfs/(?P<oid>[0-9a-f]{64})")
    def put_object(self, oid):
        self.keep(oid, self.body)
        return {}

    @route("PUT", "/lfs/(?P<oid>[0-9a-f]{64})/(?P<part>[0-9]+)")
    def put_part(self, oid, part):
        self.hub.parts[oid, int(part)] = self.body
        return 200, {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'}, b""

    @route("POST", "/lfs/(?P<oid>[0-9a-f]{64})")
    def join_parts(self, oid):
        numbers = [part["partNumber"] for part in self.json()["parts"]]
        if any((oid, number) not in self.hub.parts for number in numbers):
            raise Refusal(400, f"parts of {oid} are missing")
        self.keep(oid, b"".join(self.hub.parts[oid, number] for number in numbers))
        return {}

    @route("POST", rf"{FILE}\.git/info/lfs/verify")
    def verify_object(self, kind, name):
        self.find(kind, name, write=True)
        if self.json()["oid"] not in self.hub.objects:
            raise Refusal(404, "the object is not there")
        return {}

    @route("POST", f"/api/{REPO}/commit/(?P<revision>[^/]+)")
    def receive_commit(self, kind, name, revision):
        repository = self.find(kind, name, write=True)
        if revision not in repository.branches:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files, changes, header = repository.find(revision).files, {}, {}
        for line in self.body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                header = value
                if header.get("parentCommit") not in (None, repository.branches[revision]):
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif key == "file":
                changes[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise Refusal(400, f"LFS object {value['oid']} was not uploaded")
                changes[value["path"]] = Blob(self.hub.objects[value["oid"]], True)
            else:  # deletedFile, deletedFolder
                gone = [p for p in files if p == value["path"] or p.startswith(value["path"].rstrip("/") + "/")]
                if not gone:
                    raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
                changes.update(dict.fromkeys(gone))
        commit = self.hub.commit(repository, revision, header.get("summary", ""), self.user().name, changes)
        url = f"{self.hub.url}/{PAGES[repository.type]}{name}/commit/{commit.id}"
        return {"success": True, "commitOid": commit.id, "commitUrl": url, "hookOutput": ""}

    # Reading files.

    @route("GET", f"{FILE}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    def read_file(self, kind, name, revision, path):
        commit = self.find(kind, name, content=True).find(revision)
        if path not in commit.files:
            raise Refusal(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": commit.id})
        blob = commit.files[path]
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
        headers["Content-Type"] = "application/octet-stream"
        headers["Access-Control-Allow-Origin"] = self.headers.get("Origin", "*")  # Web pages read files too.
        if blob.large:
            headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.data))}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, headers, blob.data
        start, stop = int(wanted[1]), min(int(wanted[2] or len(blob.data)) + 1, len(blob.data))
        if start >= len(blob.data):
            raise Refusal(416, "no such range", **{"Content-Range": f"bytes */{len(blob.data)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(blob.data)}"
        return 206, headers, blob.data[start:stop]


def _lfs(blob: Blob, key: str) -> dict:
    if not blob.large:
        return {}
    return {"lfs": {key: blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}}


def _entry(path: str, files: Mapping[str, Blob]) -> dict:
    """Return a file or directory as an entry of a listing."""
    if path not in files:
        return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
    blob = files[path]
    return {"type": "file", "path": path, "size": len(blob.data), "oid": blob.oid, **_lfs(blob, "oid")}
