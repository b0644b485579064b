/** Sign-in with a password or with the identity provider; afterwards the page that was asked for. */

import { Alert, Anchor, Button, Divider, PasswordInput, Stack, Text, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { requestJson } from "@/api/client";
import { loadSession, SESSION_KEY } from "@/app/session";
import { ErrorState } from "@/components/ErrorState";
import { nextPage, rememberPage } from "@/lib/next-page";
import { SignInFrame } from "./SignInFrame";

interface Methods {
  password: boolean;
  oidc: boolean;
}

export function SignIn() {
  const [query] = useSearchParams();
  const navigate = useNavigate();
  const queries = useQueryClient();
  const next = nextPage(query);
  const methods = useQuery({
    queryKey: ["sign-in-methods"],
    queryFn: () => requestJson<Methods>("GET", "/admin/sign-in-methods"),
  });
  const session = useQuery({ queryKey: SESSION_KEY, queryFn: loadSession });
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useForm({ initialValues: { email: "", password: "" } });

  useEffect(() => {
    document.title = "Sign in · Hearth";
    if (session.data) void navigate(next, { replace: true });
  }, [session.data, navigate, next]);

  async function signIn(values: { email: string; password: string }) {
    setIsBusy(true);
    setError(null);
    try {
      await requestJson("POST", "/admin/sign-in/password", values);
      queries.removeQueries({ predicate: ({ queryKey }) => queryKey[0] !== SESSION_KEY[0] });
      await queries.fetchQuery({ queryKey: SESSION_KEY, queryFn: loadSession, staleTime: 0 });
    } catch (failure) {
      setError(failure);
      form.setFieldValue("password", "");
    } finally {
      setIsBusy(false);
    }
  }

  const hasPassword = methods.data?.password ?? true;
  return (
    <SignInFrame title="Sign in to Hearth">
      <Stack gap="md">
        {error !== null && <ErrorState error={error} title="Sign-in failed" />}
        {methods.error && <ErrorState error={methods.error} onRetry={() => void methods.refetch()} />}
        {hasPassword && (
          <form onSubmit={form.onSubmit((values) => void signIn(values))}>
            <Stack gap="sm">
              <TextInput label="Email" type="email" autoComplete="username" required autoFocus {...form.getInputProps("email")} />
              <PasswordInput label="Password" autoComplete="current-password" required {...form.getInputProps("password")} />
              <Button type="submit" size="sm" loading={isBusy} fullWidth>
                Sign in
              </Button>
            </Stack>
          </form>
        )}
        {methods.data?.oidc && (
          <>
            {hasPassword && <Divider label="or" />}
            <Button component="a" href="/admin/sign-in" onClick={() => rememberPage(next)} variant="default" size="sm" fullWidth>
              Sign in with your organization
            </Button>
          </>
        )}
        {methods.data && !methods.data.oidc && !methods.data.password && (
          <Alert color="blue">No password is set yet. Use the sign-in link that the platform printed when it started.</Alert>
        )}
        <Text size="xs" c="dimmed">
          No password yet? <span className="mono">hearth up</span> prints a sign-in link when it starts, and{" "}
          <span className="mono">hearth operator reset</span> sets a password. The{" "}
          <Anchor href="/docs" size="xs" underline="always">
            API reference
          </Anchor>{" "}
          needs no sign-in.
        </Text>
      </Stack>
    </SignInFrame>
  );
}
