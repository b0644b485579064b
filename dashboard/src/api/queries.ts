/** The query cache and its rules for retries. */

import { QueryClient } from "@tanstack/react-query";
import { isTemporary } from "./errors";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 10_000,
      retry: (count, error) => isTemporary(error) && count < 3,
      refetchOnWindowFocus: true,
    },
    mutations: { retry: false },
  },
});
