/** The page to open after sign-in. */

const KEY = "hearth-next-page";

/** Return the page in the query string of the sign-in page: only paths of the dashboard. */
export function nextPage(query: URLSearchParams): string {
  const next = query.get("next") ?? "";
  return /^\/(?![/\\])/.test(next) ? next : "/overview";
}

/** Remember the page while the identity provider signs the user in, which ends at the start page. */
export function rememberPage(path: string): void {
  sessionStorage.setItem(KEY, path);
}

/** Return the remembered page and forget it. */
export function takeRememberedPage(): string | null {
  const path = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  return path;
}
