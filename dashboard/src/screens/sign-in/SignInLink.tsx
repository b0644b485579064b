/** Sign-in by a one-time link. The token is in the fragment, which browsers do not send and proxies do not log. */

import { Button, Loader, Stack, Text } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Link, useNavigate } from "react-router";
import { requestJson } from "@/api/client";
import { SESSION_KEY } from "@/app/session";
import { ErrorState } from "@/components/ErrorState";
import { SignInFrame } from "./SignInFrame";

let used = ""; // React renders twice in development; the link works only once

export function SignInLink() {
  const navigate = useNavigate();
  const queries = useQueryClient();
  const [error, setError] = useState<unknown>(null);

  useEffect(() => {
    document.title = "Sign in · Hearth";
    const token = window.location.hash.slice(1);
    if (token && token === used) return;
    used = token;
    window.history.replaceState(null, "", window.location.pathname); // the token must not stay in the history
    requestJson("POST", "/admin/sign-in/link", { token }).then(
      () => {
        queries.clear();
        void queries.invalidateQueries({ queryKey: SESSION_KEY });
        void navigate("/overview", { replace: true });
      },
      (failure: unknown) => setError(failure),
    );
  }, [navigate, queries]);

  return (
    <SignInFrame title={error ? "This link does not work" : "Signing in"}>
      {error ? (
        <Stack gap="md">
          <ErrorState error={error} title="Sign-in failed" />
          <Text size="sm" c="dimmed">
            A link works once, within ten minutes. <span className="mono">hearth dashboard</span> prints a new one.
          </Text>
          <Button component={Link} to="/sign-in" variant="default" size="sm">
            Sign in with a password
          </Button>
        </Stack>
      ) : (
        <Loader role="status" size="sm" aria-label="Signing in" />
      )}
    </SignInFrame>
  );
}
