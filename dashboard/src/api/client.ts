/** The HTTP client of the gateway: typed paths, the CSRF header, and errors as `ApiError`. */

import createClient, { type Middleware } from "openapi-fetch";
import { ApiError, readError, SignedOut, Unreachable } from "./errors";
import type { paths } from "./schema";

let csrfToken = "";

/** Set the token that changing requests carry; `null` when nobody is signed in. */
export function setCsrfToken(token: string | null): void {
  csrfToken = token ?? "";
}

const NO_CREDENTIALS = 9106; // the code for a request without a cookie, which the browser drops when the session ends
const UNSAFE = new Set(["POST", "PUT", "PATCH", "DELETE"]);

/** `fetch` for routes without a type (streams, uploads): same cookies, CSRF header and errors as `client`. */
export async function send(input: string | Request, init: RequestInit = {}): Promise<Response> {
  const request = new Request(input, { credentials: "same-origin", ...init });
  if (csrfToken && UNSAFE.has(request.method)) request.headers.set("x-hearth-csrf", csrfToken);
  let response: Response;
  try {
    response = await fetch(request);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  if (!response.ok) {
    const failure = await readError(response);
    const hasNoSession = response.status === 401 || failure.code === NO_CREDENTIALS;
    if (hasNoSession && !new URL(request.url).pathname.startsWith("/admin/sign-in")) {
      window.dispatchEvent(new Event(SignedOut));
    }
    throw failure;
  }
  return response;
}

/** Fill path parameters in; the slashes of a model name stay, as the gateway's routes expect. */
function fillPath(path: string, parameters: Record<string, unknown>): string {
  return path.replace(/\{([a-z_]+)\}/g, (_, name: string) =>
    String(parameters[name]).split("/").map(encodeURIComponent).join("/"),
  );
}

const failures: Middleware = {
  onError: ({ error }) => (error instanceof Error ? error : new Error(String(error))),
};

export const client = createClient<paths>({
  baseUrl: window.location.origin,
  fetch: (request) => send(request),
  pathSerializer: fillPath,
});
client.use(failures);

export interface ResultInfo {
  page?: number;
  per_page?: number;
  count?: number;
  total_count?: number;
  cursor?: string | null;
  cursors?: { after?: string | null };
}

export interface Page<T> {
  items: T[];
  info: ResultInfo;
}

interface Envelope {
  success: boolean;
  result?: unknown;
  result_info?: ResultInfo;
}

/** Return the `result` of an enveloped response. The caller names its type, which `shapes.ts` describes. */
export async function result<T>(call: Promise<{ data?: unknown }>): Promise<T> {
  return (await envelope(call)).result as T;
}

/** Return the `result` of a response with its ETag, which a change sends as `if-match`. */
export async function versioned<T>(call: Promise<{ data?: unknown; response: Response }>): Promise<T & { etag: string }> {
  const { response } = await call;
  return { ...(await result<T>(call)), etag: response.headers.get("etag") ?? "*" };
}

/** Return one page of a list. */
export async function page<T>(call: Promise<{ data?: unknown }>): Promise<Page<T>> {
  const body = await envelope(call);
  return { items: (body.result ?? []) as T[], info: body.result_info ?? {} };
}

async function envelope(call: Promise<{ data?: unknown }>): Promise<Envelope> {
  const { data } = await call;
  if (typeof data !== "object" || data === null) {
    throw new ApiError(200, 0, "The gateway sent a response without an envelope.", "");
  }
  return data as Envelope;
}

/** Request a route that is not in the OpenAPI document (`/admin/…`), and return the `result` of its envelope. */
export async function requestJson<T>(method: string, path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, headers: { accept: "application/json" } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { ...init.headers, "content-type": "application/json" };
  }
  const response = await send(new URL(path, window.location.origin).href, init);
  const text = await response.text();
  return (text ? (JSON.parse(text) as Envelope).result : null) as T;
}
