"""A small Hub on this machine: it can store, branch, resolve and list models."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class LocalHub(ThreadingHTTPServer):
    """A server on 127.0.0.1 that runs within a `with` block; is_refusing: it rejects tokens."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories, self.objects, self.requests, self.sdks = {}, {}, [], {}
        self.is_refusing = False

    def handle_error(self, request, client_address):
        """Ignore clients that disconnect: tests provoke them."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.shutdown()
        self.server_close()

    def branch(self, repo, revision):
        """(commit id, files) of a branch, or of the commit itself."""
        branches = self.repositories.get(repo, {})
        if revision in branches:
            return branches[revision]
        return next((kept for kept in branches.values() if kept[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, content=b"", status=200, headers=(), head=False):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def missing(self, code="EntryNotFound"):
        head = self.command == "HEAD"
        self.answer({"error": code}, 404, {"X-Error-Code": code}, head)

    def handle_one_request(self):
        self.body = b""
        super().handle_one_request()

    def route(self):
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path, self.body))
        if self.server.is_refusing and self.command == "POST":
            return self.answer({"error": "Invalid username or password."}, 401)
        for pattern, method in ROUTES:
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                return method(self, *match.groups())
        return self.missing()

    do_GET = do_HEAD = do_POST = do_PUT = route

    def create(self):
        asked = json.loads(self.body)
        repo = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        if asked.get("type") == "space":
            repo = f"spaces/{repo}"
            self.server.sdks[repo] = asked["sdk"]
        if repo in self.server.repositories:
            return self.answer({"error": "exists", "url": f"{self.server.url}/{repo}"}, 409)
        self.server.repositories[repo] = {"main": ("0" * 40, {})}
        return self.answer({"url": f"{self.server.url}/{repo}", "name": repo, "id": repo})

    def make_branch(self, repo, name):
        branches = self.server.repositories[repo]
        if name in branches:
            return self.answer({"error": "exists"}, 409)
        branches[name] = branches["main"]
        return self.answer({})

    def preupload(self, repo, revision):
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        modes = ["lfs" if path.endswith(".safetensors") else "regular" for path in paths]
        pairs = zip(paths, modes, strict=True)
        files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in pairs]
        return self.answer({"files": files})

    def lfs_batch(self, repo):
        answers = []
        for wanted in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.server.url}/lfs/{wanted['oid']}"}}
            has = wanted["oid"] in self.server.objects
            answers.append({**wanted, **({} if has else {"actions": upload})})
        return self.answer({"transfer": "basic", "objects": answers})

    def lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.answer({"error": "checksum"}, 400)
        self.server.objects[oid] = self.body
        return self.answer({})

    def commit(self, repo, revision):
        files = self.changed_files(self.server.branch(repo, revision)[1])
        commit_id = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.server.repositories[repo][revision] = (commit_id, files)
        address = f"{self.server.url}/{repo}/commit/{commit_id}"
        return self.answer({"commitUrl": address, "commitOid": commit_id, "hookOutput": ""})

    def changed_files(self, files):
        files = dict(files)
        for line in self.body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                files[entry["value"]["path"]] = self.server.objects[entry["value"]["oid"]]
            elif entry["key"] == "deletedFile":
                del files[entry["value"]["path"]]
        return files

    def info(self, repo, revision="main"):
        found = self.server.branch(repo, revision)
        if found is None:
            is_known = repo in self.server.repositories
            return self.missing("RevisionNotFound" if is_known else "RepoNotFound")
        siblings = [{"rfilename": path} for path in found[1]]
        return self.answer({"id": repo, "modelId": repo, "sha": found[0], "siblings": siblings})

    def tree(self, repo, revision, folder):
        found = self.server.branch(repo, revision)
        if found is None:
            return self.missing("RevisionNotFound")
        entries = [
            {"type": "file", "path": path, "size": len(content), "oid": "0"}
            for path, content in found[1].items()
            if path.startswith(folder or "")
        ]
        return self.answer(entries)

    def resolve(self, repo, revision, path):
        found = self.server.branch(repo, revision)
        if found is None:
            return self.missing("RevisionNotFound")
        if path not in found[1]:
            return self.missing()
        content = found[1][path]
        tag = hashlib.sha256(content).hexdigest()
        headers = {
            "ETag": f'"{tag}"',
            "X-Repo-Commit": found[0],
            "X-Linked-Size": str(len(content)),
        }
        return self.answer(content, 200, headers, head=self.command == "HEAD")


# The name that a Space has in addresses and in `repositories` begins with "spaces/".
REPO = r"((?:spaces/)?[\w.-]+/[\w.-]+)"
API = rf"/api/(?:models/|(?=spaces/)){REPO}"
ROUTES = [
    (r"POST /api/repos/create", Handler.create),
    (r"POST /api/validate-yaml", lambda self: self.answer({"errors": [], "warnings": []})),
    (rf"POST {API}/branch/(.+)", Handler.make_branch),
    (rf"POST {API}/preupload/(.+)", Handler.preupload),
    (rf"POST /{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (r"PUT /lfs/(\w+)", Handler.lfs_put),
    (rf"POST {API}/commit/(.+)", Handler.commit),
    (rf"GET {API}", Handler.info),
    (rf"GET {API}/revision/(.+)", Handler.info),
    (rf"GET {API}/tree/([^/]+)(?:/(.*))?", Handler.tree),
    (rf"(?:GET|HEAD) /{REPO}/resolve/([^/]+)/(.+)", Handler.resolve),
]
