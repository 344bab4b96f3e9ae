"""A language model behind HTTP, as its users write such a server: `server.py [PORT] [LAYERS]`.

A Llama-like model of 0.9 billion parameters (16 layers) with random weights of one seed answers `GET /PROMPT` with the eight
tokens that follow the prompt's numbers. It listens when it has answered once, so that an image of it holds what the first answer makes.
"""

import http.server
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402 (the variables come first)

from programs import transformers_llama  # noqa: E402


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    torch.manual_seed(7)
    model = transformers_llama(torch, int(sys.argv[2]) if len(sys.argv) > 2 else 16).eval()

    def answer(prompt):
        tokens = torch.tensor([[ord(letter) for letter in prompt] or [1]], device="cuda")
        out = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
        return " ".join(str(token) for token in out[0, tokens.shape[1] :].tolist()) + "\n"

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers one request after the other."""

        def do_GET(self):
            body = answer(self.path[1:65]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    answer("warm")
    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
