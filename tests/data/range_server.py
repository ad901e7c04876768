"""HTTP server for download_test.sh: serves a folder with byte ranges, which http.server does not support.

    range_server.py FOLDER PORT_FILE LOG_FILE

Listens on a free port of 127.0.0.1 and writes its number to PORT_FILE. Each request adds the line "path range" to
LOG_FILE ("-" without a range). The first request of a file with "train_000002" in its name is aborted half-way;
paths below /norange/ ignore ranges.
"""
import http.server
import os
import sys

folder, port_file, log_file = sys.argv[1:]
broken_off = set()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        with open(log_file, "a") as log:
            log.write(f"{self.path} {wanted or '-'}\n")
        name = os.path.basename(self.path)
        try:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return self.send_error(404)
        first = 0
        if wanted and not self.path.startswith("/norange/"):
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            if first >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        end = len(content)
        if "train_000002" in name and name not in broken_off:
            broken_off.add(name)
            end = len(content) // 2
        self.wfile.write(content[first:end])

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
with open(port_file + ".tmp", "w") as file:
    file.write(str(server.server_port))
os.rename(port_file + ".tmp", port_file)
server.serve_forever()
