# A Worker in plain workerd, with its AI binding answered by Hearth and nothing between the two.
# Put your account, your token and your gateway's address where it says so, then:  workerd serve workerd.capnp
# For a gateway behind TLS, `http = (…)` below becomes
#   https = (options = (injectRequestHeaders = […]), tlsOptions = (trustBrowserCas = true), certificateHost = "HOST")

using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "hearth", external = (
      address = "127.0.0.1:8787",
      http = (injectRequestHeaders = [
        (name = "Authorization", value = "Bearer YOUR_TOKEN"),
        (name = "x-hearth-account", value = "YOUR_ACCOUNT"),
      ]),
    )),
  ],
  sockets = [(name = "http", address = "127.0.0.1:8788", http = (), service = "main")],
);

const worker :Workerd.Worker = (
  modules = [(name = "worker", esModule = embed "chat.js")],
  compatibilityDate = "2026-07-30",
  bindings = [
    (name = "AI", wrapped = (
      moduleName = "cloudflare-internal:ai-api",
      innerBindings = [(name = "fetcher", service = "hearth")],
    )),
  ],
);
