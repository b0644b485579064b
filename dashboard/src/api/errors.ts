/** Errors of requests, in one form for every kind of failure. */

/** Name of the window event that says the session ended. */
export const SignedOut = "hearth:signed-out";

/** An error response of the gateway. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: number | string,
    message: string,
    readonly requestId: string,
    /** JSON pointer of the invalid field, if the gateway names one. */
    readonly pointer: string = "",
  ) {
    super(message);
    this.name = "ApiError";
  }
}

/** The gateway could not be reached at all. */
export class Unreachable extends ApiError {
  constructor() {
    super(0, "unreachable", "The gateway cannot be reached. The page retries by itself.", "");
    this.name = "Unreachable";
  }
}

interface ErrorBody {
  errors?: { code?: number; message?: string; source?: { pointer?: string } }[];
  error?: { code?: string | number; type?: string; message?: string } | string;
}

/** Read an error response, whatever API family it has. */
export async function readError(response: Response): Promise<ApiError> {
  const requestId =
    response.headers.get("x-hearth-request-id") ?? response.headers.get("x-request-id") ?? "";
  let body: ErrorBody | null = null;
  try {
    body = (await response.json()) as ErrorBody;
  } catch {
    // A proxy in front of the gateway may answer with HTML.
  }
  const first = body?.errors?.[0];
  if (first?.message) {
    const pointer = first.source?.pointer ?? "";
    return new ApiError(response.status, first.code ?? response.status, first.message, requestId, pointer);
  }
  if (typeof body?.error === "object" && body.error?.message) {
    const code = body.error.code ?? body.error.type ?? response.status;
    return new ApiError(response.status, code, body.error.message, requestId);
  }
  const text = typeof body?.error === "string" ? body.error : `The gateway answered with status ${response.status}.`;
  return new ApiError(response.status, response.status, text, requestId);
}

/** Return True for errors that may go away if the same request is sent again. */
export function isTemporary(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof ApiError && [502, 503, 504].includes(error.status));
}
