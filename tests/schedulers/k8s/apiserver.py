"""As much of a Kubernetes API server as `kubectl get pods --watch`, `cordon`, `annotate` and `label` ask for."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
VERBS = ["get", "list", "patch", "watch"]
RESOURCES = [
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": VERBS},
    {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "verbs": VERBS},
]


def merged(into: Object, patch: Object) -> Object:
    """JSON merge patch, which a strategic one is for maps."""
    for name, value in patch.items():
        if isinstance(value, dict):
            into[name] = merged(dict(into.get(name) or {}), value)
        elif value is None:
            into.pop(name, None)
        else:
            into[name] = value
    return into


class Cluster:
    """Nodes and pods by path.  A pod that is put is seen by whoever watches its label."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.watchers: list[queue.SimpleQueue[Object | None]] = []
        self.used: set[tuple[str, str]] = set()  # verb, resource
        self.url = ""

    def node(self, name: str) -> Object:
        path = f"/api/v1/nodes/{name}"
        made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        return self.objects.setdefault(path, made)

    def put(self, name: str, node: str, message: str | None, label: str = "cordon") -> Object:
        state = {"running": {}} if message is None else {"terminated": {"exitCode": 197, "message": message}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "jobs", "labels": {"ftrun/on-node-fault": label}},
            "spec": {"nodeName": node},
            "status": {"containerStatuses": [{"name": "train", "state": state}]},
        }
        self.objects[f"/api/v1/namespaces/jobs/pods/{name}"] = pod
        for watcher in self.watchers:
            watcher.put(pod)
        return pod

    def pods(self, label: str) -> list[Object]:
        key, _, value = label.partition("=")
        found = [o for path, o in sorted(self.objects.items()) if "/pods/" in path]
        return [o for o in found if o["metadata"]["labels"].get(key) == value]

    def end_watches(self) -> None:
        for watcher in self.watchers:
            watcher.put(None)


def handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def say(self, found: Object | None) -> None:
            content = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            if url.path == "/api":
                self.say({"kind": "APIVersions", "versions": ["v1"]})
            elif url.path == "/apis":
                self.say({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
            elif url.path == "/api/v1":
                self.say({"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES})
            elif url.path == "/api/v1/pods" and asked.get("watch") in ("1", "true"):
                cluster.used.add(("watch", "pods"))
                self.watch(asked["labelSelector"])
            elif url.path == "/api/v1/pods":
                cluster.used.add(("list", "pods"))
                items = cluster.pods(asked["labelSelector"])
                self.say({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
            elif url.path in cluster.objects:
                cluster.used.add(("get", url.path.split("/")[-2]))
                self.say(cluster.objects[url.path])
            else:
                self.say(None)

        def watch(self, label: str) -> None:
            watcher: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
            cluster.watchers.append(watcher)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            while (pod := watcher.get()) is not None:
                if pod in cluster.pods(label):
                    self.wfile.write(json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n")
                    self.wfile.flush()

        def do_PATCH(self) -> None:
            path = urlsplit(self.path).path
            cluster.used.add(("patch", path.split("/")[-2]))
            found = cluster.objects.get(path)
            patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.say(merged(found, patch) if found else None)

    return Handler


@contextmanager
def serving() -> Iterator[Cluster]:
    cluster = Cluster()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(cluster))
    server.daemon_threads = True
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield cluster
    finally:
        cluster.end_watches()
        server.shutdown()
        thread.join()
        server.server_close()
