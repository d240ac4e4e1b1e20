"""A loopback server that answers hf_tlm's requests like Elasticsearch 9, in place of a real one.

It keeps indices in memory, shows passages only after a refresh, scores with BM25 in float64 rounded to float32, and is
strict: an unknown route, parameter or field, a sort without doc values, or a window too large gets the error that
Elasticsearch gives. Two things are simpler than in Elasticsearch: lengths are exact, and an index has one shard.
"""

import json
import math
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from hf_tlm.retrieval.texts import Analyzer

MEDIA = "application/vnd.elasticsearch+json; compatible-with="
PARAMETERS = {"filter_path", "search_type", "_source_includes"}


class Failure(Exception):
    """Raised to send an error as the response."""

    def __init__(self, status, kind, reason, **more):
        self.status = status
        error = {"type": kind, "reason": reason, **more}
        self.body = {"error": {"root_cause": [{"type": kind, "reason": reason}], **error}, "status": status}


class ElasticServer:
    """The server, a context manager.

    Attributes:
        api_key: required of every request unless None.
        fail: called with (method, path) before every request; returns None, a Failure to answer with, or "drop" to close
            the connection.
        fail_item: called with (api, key), where key is the query's text for _msearch and the id for _bulk and _mget;
            returns None or a Failure; for _msearch also fields to add to the response.
        requests: (method, path, headers, body as text) of all requests.
        max_clause_count: most terms in a query.
        version: major version of the server.
    """

    def __init__(self):
        self.api_key, self.max_clause_count, self.version = None, 1024, 9
        self.product = "Elasticsearch"
        self.fail = self.fail_item = lambda *request: None
        self.requests, self.indices, self.aliases = [], {}, {}

    def __enter__(self):
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"elastic": self}))
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def paths(self, end=""):
        return [path for _, path, _, _ in self.requests if path.endswith(end)]

    def add(self, name, documents, properties, **settings):
        """Add an index that hf_tlm did not create; documents: id -> source."""
        self.indices[name] = {"mappings": {"properties": properties}, "settings": {"index": settings}}
        self.indices[name] |= {"documents": dict(documents), "visible": dict(documents)}

    # One method per route; `names` are the indices that the path refers to.

    def info(self):
        return {"version": {"number": f"{self.version}.0.0"}, "tagline": "You Know, for Search"}

    def create(self, name, body):
        if name in self.indices:
            raise Failure(400, "resource_already_exists_exception", f"index [{name}] already exists")
        analyzers = body["settings"]["index"]["analysis"]["analyzer"]
        for field in body["mappings"]["properties"].values():
            if field.get("analyzer", "standard") not in {*analyzers, "standard"}:
                raise Failure(400, "mapper_parsing_exception", f"analyzer [{field['analyzer']}] has not been configured")
        self.indices[name] = {**_strings(body), "documents": {}, "visible": {}}
        return {"acknowledged": True, "index": name}

    def describe(self, names):
        return {name: {part: self.indices[name][part] for part in ("mappings", "settings")} for name in names}

    def put_settings(self, names, body):
        for name in names:
            self.indices[name]["settings"]["index"].update(body["index"])
        return {"acknowledged": True}

    def put_mapping(self, names, body):
        assert set(body) == {"_meta"}
        for name in names:
            self.indices[name]["mappings"]["_meta"] = body["_meta"]
        return {"acknowledged": True}

    def refresh(self, names):
        for name in names:
            self.indices[name]["visible"] = dict(self.indices[name]["documents"])
        return {"_shards": {"total": 1, "successful": 1, "failed": 0}}

    def count(self, names):
        return {"count": sum(len(self.indices[name]["visible"]) for name in names)}

    def bulk(self, names, lines):
        index, items = self.indices[names[0]], []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            assert set(action) == {"create"}
            key = action["create"]["_id"]
            failure = self.fail_item("_bulk", key)
            if failure is None and key in index["documents"]:
                failure = Failure(409, "version_conflict_engine_exception", f"[{key}]: document already exists")
            if failure is None and set(source) - set(index["mappings"]["properties"]):
                failure = Failure(400, "strict_dynamic_mapping_exception", "introduction of a field is not allowed")
            if failure is None:
                index["documents"][key] = source
                items.append({"create": {"_index": names[0], "_id": key, "status": 201, "result": "created"}})
            else:
                error = failure.body["error"]
                items.append({"create": {"_index": names[0], "_id": key, "status": failure.status, "error": error}})
        return {"errors": any("error" in item["create"] for item in items), "items": items}

    def msearch(self, names, lines):
        assert all(set(header) <= {"preference"} for header in lines[::2])
        responses = []
        for body in lines[1::2]:
            try:
                failure = self.fail_item("_msearch", next(iter(body["query"]["match"].values()))["query"])
                if isinstance(failure, Failure):
                    raise failure
                responses.append({**self.search(names, body), "status": 200, **(failure or {})})
            except Failure as error:
                responses.append(error.body)
        return {"took": 1, "responses": responses}

    def mget(self, names, body, includes):
        if len(names) > 1:
            raise Failure(400, "illegal_argument_exception", "alias has more than one index associated with it")
        documents = []
        for key in body["ids"]:
            failure = self.fail_item("_mget", key)
            source = self.indices[names[0]]["documents"].get(key)
            if failure is not None:
                documents.append({"_index": names[0], "_id": key, "error": failure.body["error"]})
            elif source is None:
                documents.append({"_index": names[0], "_id": key, "found": False})
            else:
                kept = {field: source[field] for field in source if field in includes}
                documents.append({"_index": names[0], "_id": key, "found": True, "_source": kept})
        return {"docs": documents}

    def search(self, names, body):
        size, hits = body["size"], []
        for name in names:
            window = int(self.indices[name]["settings"]["index"].get("max_result_window", 10_000))
            if size > window:
                reason = f"Result window is too large, from + size must be less than or equal to: [{window}]"
                raise Failure(400, "illegal_argument_exception", reason)
            for field in [next(iter(key)) for key in body.get("sort", [])] + body.get("docvalue_fields", []):
                if field != "_score" and self._field(name, field).get("type") != "keyword":
                    reason = f"Fielddata is disabled on [{field}] in [{name}]"
                    raise Failure(400, "illegal_argument_exception", reason)
            hits += [(score, key, self.indices[name]["visible"][key]) for key, score in self._matches(name, body["query"])]
        order = [next(iter(key)) for key in body.get("sort", [])]
        assert order in ([], ["_score", *order[1:]])
        # Without a tie-breaker the order of equal scores is undefined: here the last document added comes first.
        hits.reverse()
        # A passage without a value comes last.
        keys = [[hit[2].get(field, "\U0010ffff") for field in order[1:]] for hit in hits]
        hits = [hit for _, hit in sorted(zip(keys, hits, strict=True), key=lambda pair: (-pair[1][0], *pair[0]))][:size]
        found = []
        for score, key, source in hits:
            hit = {"_score": score}
            if body.get("stored_fields") == "_none_":
                assert body["_source"] is False
            else:
                hit |= {"_index": names[0], "_id": key}
            if body.get("_source") is not False:
                hit["_source"] = {field: source[field] for field in source if field in body["_source"]}
            if "docvalue_fields" in body:
                values = {field: source.get(field.removesuffix(".keyword")) for field in body["docvalue_fields"]}
                if values := {field: [value] for field, value in values.items() if value is not None}:
                    hit["fields"] = values
            found.append(hit)
        shards = {"total": len(names), "successful": len(names), "skipped": 0, "failed": 0}
        return {"took": 1, "timed_out": False, "_shards": shards, "hits": {"max_score": 1.0, "hits": found}}

    def _field(self, name, path):
        head, _, rest = path.partition(".")
        field = self.indices[name]["mappings"]["properties"].get(head, {})
        return field.get("fields", {}).get(rest, {}) if rest else field

    def _matches(self, name, query):
        """Return (id, score) of the matching visible passages, by a plain BM25 that counts terms and lengths each time."""
        index = self.indices[name]
        if "terms" in query:
            ((field, wanted),) = query["terms"].items()
            return [(k, 1.0) for k, source in index["visible"].items() if source[field.removesuffix(".keyword")] in wanted]
        ((field, match),) = query["match"].items()
        options, definition = index["settings"]["index"], self._field(name, field)
        filters = options.get("analysis", {}).get("analyzer", {}).get(definition.get("analyzer"), {}).get("filter", [])
        analyzer = Analyzer("en" if any("stop" in part for part in filters) else None)
        similarity = options.get("similarity", {}).get(definition.get("similarity"), {})
        k1, b = float(similarity.get("k1", 1.2)), float(similarity.get("b", 0.75))
        terms = analyzer(match["query"])
        if len(terms) > self.max_clause_count:
            reason = f"Query contains too many nested clauses; maxClauseCount is set to {self.max_clause_count}"
            cause = {
                "reason": {"type": "x", "reason": "y", "caused_by": {"type": "too_many_nested_clauses", "reason": reason}}
            }
            raise Failure(400, "search_phase_execution_exception", "all shards failed", failed_shards=[cause])
        counts = {key: Counter(analyzer(source[field])) for key, source in index["visible"].items()}
        mean = np.mean([sum(count.values()) for count in counts.values()])
        df = Counter(term for count in counts.values() for term in count)
        scored = []
        for key, count in counts.items():
            norm = k1 * (1 - b + b * sum(count.values()) / mean)
            idf = [math.log(1 + (len(counts) - df[term] + 0.5) / (df[term] + 0.5)) for term in terms]
            score = sum(part * count[term] / (count[term] + norm) for part, term in zip(idf, terms, strict=True))
            if any(count[term] for term in terms):
                scored.append((key, float(np.float32(score))))
        return scored

    def answer(self, method, path, query, body, kind):
        """Return the JSON response to a request."""
        assert set(query) <= PARAMETERS, query
        parts = path.strip("/").split("/")
        if parts == [""]:
            return self.info()
        if (method, parts[1:]) == ("PUT", []):
            return self.create(parts[0], json.loads(body))
        names = self.aliases.get(parts[0], [parts[0]])
        for name in names:
            if name not in self.indices:
                raise Failure(404, "index_not_found_exception", f"no such index [{name}]", index=name)
        lines = [json.loads(line) for line in body.splitlines()] if "ndjson" in kind else json.loads(body or "{}")
        assert "ndjson" not in kind or body.endswith("\n")
        routes = {
            ("HEAD", ""): lambda: {},
            ("GET", ""): lambda: self.describe(names),
            ("PUT", "_settings"): lambda: self.put_settings(names, lines),
            ("PUT", "_mapping"): lambda: self.put_mapping(names, lines),
            ("POST", "_refresh"): lambda: self.refresh(names),
            ("POST", "_count"): lambda: self.count(names),
            ("PUT", "_bulk"): lambda: self.bulk(names, lines),
            ("POST", "_msearch"): lambda: self.msearch(names, lines),
            ("POST", "_search"): lambda: self.search(names, lines),
            ("POST", "_mget"): lambda: self.mget(names, lines, query["_source_includes"].split(",")),
        }
        found = routes.get((method, "/".join(parts[1:])))
        if found is None:
            raise Failure(400, "illegal_argument_exception", f"no handler for [{method} {path}]")
        return found()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Headers and body in one packet.

    def handle_any(self):
        elastic, parts = self.elastic, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        elastic.requests.append((self.command, parts.path, dict(self.headers), body))
        kind = self.headers.get("Content-Type", "")
        query = dict(parse_qsl(parts.query))
        try:
            failure = elastic.fail(self.command, parts.path)
            if failure == "drop":
                self.close_connection = True
                return
            if failure is not None:
                raise failure
            accepted = self.headers["Accept"].removeprefix(MEDIA)
            if int(accepted) > elastic.version:
                reason = (
                    f"Accept version must be either version {elastic.version} or {elastic.version - 1}, but found {accepted}"
                )
                raise Failure(400, "media_type_header_exception", reason)
            if elastic.api_key is not None:
                given = self.headers.get("Authorization", "")
                if given != f"ApiKey {elastic.api_key}":
                    raise Failure(401, "security_exception", f"unable to authenticate with [{given}]")
            status, result = 200, elastic.answer(self.command, parts.path, query, body, kind)
            if "filter_path" in query:
                result = _filtered(result, [path.split(".") for path in query["filter_path"].split(",")])
        except Failure as error:
            status, result = error.status, error.body
        data = b"" if self.command == "HEAD" else json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.elasticsearch+json;compatible-with=9")
        self.send_header("X-Elastic-Product", elastic.product)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = handle_any

    def log_message(self, *_):
        pass


def _filtered(part, paths):
    """Apply filter_path: keep only the named parts, without those that become empty."""
    if [] in paths:
        return part
    if isinstance(part, list):
        kept = [_filtered(value, paths) for value in part]
        return [value for value in kept if value not in ({}, [])]
    if not isinstance(part, dict):
        return {}
    kept = {name: _filtered(value, [path[1:] for path in paths if path[0] == name]) for name, value in part.items()}
    return {name: value for name, value in kept.items() if name in {path[0] for path in paths} and value not in ({}, [])}


def _strings(body):
    """Convert the numbers in settings to strings, as Elasticsearch returns them."""
    settings = json.loads(json.dumps(body["settings"]), parse_float=str, parse_int=str)
    return {"mappings": body["mappings"], "settings": settings}
