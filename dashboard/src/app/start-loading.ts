/** Requests before the first render: the session, and the code of the screen in the address. */

import { queryClient } from "@/api/queries";
import { SCREENS } from "./screens";
import { loadSession, SESSION_KEY } from "./session";

const MAX_WAIT_MS = 1000;

/**
 * Request what the first render of a screen needs, and wait for the responses up to a second.
 *
 * A render without them would show an indicator first, and React shows nothing else within the next 300 ms. The sign-in
 * pages have no screen and no session yet. Never rejects: the router shows failures.
 */
export async function startLoading(path: string): Promise<void> {
  const screen = SCREENS.find((each) => `${path}/`.startsWith(`/dashboard/${each.path}/`));
  if (!screen) return;
  const session = queryClient.prefetchQuery({ queryKey: SESSION_KEY, queryFn: loadSession, staleTime: 60_000 });
  const tooLong = new Promise((resolve) => setTimeout(resolve, MAX_WAIT_MS));
  await Promise.race([Promise.allSettled([session, screen.load()]), tooLong]);
}
