/** Frame of all signed-in screens: navigation, account switcher, session, connection state. */

import { AppShell, Burger, Center, Group, Loader, NavLink, ScrollArea, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, useEffect } from "react";
import { Link, Navigate, Outlet, useLocation } from "react-router";
import { eventStream } from "@/api/events";
import { SignedOut } from "@/api/errors";
import type { Session } from "@/api/shapes";
import { ErrorState } from "@/components/ErrorState";
import { AccountSwitcher } from "./AccountSwitcher";
import { CommandPalette, PaletteButton } from "./CommandPalette";
import { ConnectionBanner } from "./ConnectionBanner";
import { Logo } from "./Logo";
import { type Screen, SCREENS } from "./screens";
import { loadSession, SESSION_KEY, SessionContext, useChosenAccountId } from "./session";
import classes from "./Shell.module.css";
import { UserMenu } from "./UserMenu";

/** Return the screens that the user may open. */
export function visibleScreens(session: Session): Screen[] {
  return SCREENS.filter((screen) => screen.scope !== "platform" || session.platform_role !== null);
}

/** Return the query string of a link to another screen: only the account is kept. */
export function accountQuery(search: string): string {
  const account = new URLSearchParams(search).get("account");
  return account ? `?account=${encodeURIComponent(account)}` : "";
}

export function Shell() {
  const location = useLocation();
  const queries = useQueryClient();
  const { data, error, refetch } = useQuery({ queryKey: SESSION_KEY, queryFn: loadSession, staleTime: 60_000 });
  useEffect(() => {
    const forget = () => queries.setQueryData(SESSION_KEY, null);
    window.addEventListener(SignedOut, forget);
    return () => window.removeEventListener(SignedOut, forget);
  }, [queries]);
  if (data === undefined) {
    return (
      <Center mih="100vh" p="md">
        {error ? (
          <ErrorState error={error} title="The dashboard could not start" onRetry={() => void refetch()} />
        ) : (
          <Loader role="status" aria-label="Loading" />
        )}
      </Center>
    );
  }
  if (data === null) {
    const next = location.pathname + location.search;
    return <Navigate to={{ pathname: "/sign-in", search: next === "/" ? "" : `?next=${encodeURIComponent(next)}` }} replace />;
  }
  return (
    <SessionContext value={data}>
      <Frame session={data} />
    </SessionContext>
  );
}

function Frame({ session }: { session: Session }) {
  const [isOpen, { toggle, close }] = useDisclosure(false);
  const { pathname } = useLocation();
  const accountId = useChosenAccountId();
  useEffect(() => eventStream.setAccount(accountId), [accountId]);
  useEffect(close, [pathname, close]);
  return (
    <AppShell
      header={{ height: 48 }}
      navbar={{ width: 208, breakpoint: "sm", collapsed: { mobile: !isOpen } }}
      padding={{ base: "sm", sm: "lg" }}
    >
      <a href="#content" className={classes.skip}>
        Skip to content
      </a>
      <AppShell.Header className={classes.header}>
        <Group h="100%" px="sm" gap="sm" wrap="nowrap" justify="space-between">
          <Group gap="sm" wrap="nowrap" miw={0}>
            <Burger opened={isOpen} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Navigation" aria-expanded={isOpen} />
            <Link to={{ pathname: "/overview" }} className={classes.brand} aria-label="Hearth: overview">
              <Logo />
              <Text fw={600} visibleFrom="sm" component="span">
                Hearth
              </Text>
            </Link>
            <AccountSwitcher />
          </Group>
          <Group gap={6} wrap="nowrap">
            <PaletteButton />
            <UserMenu session={session} />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar className={classes.navbar} aria-label="Screens">
        <ScrollArea type="auto" h="100%">
          <Navigation session={session} />
        </ScrollArea>
      </AppShell.Navbar>
      <AppShell.Main id="content" tabIndex={-1} className={classes.main}>
        <ConnectionBanner />
        <Suspense
          fallback={
            <Center h={240}>
              <Loader role="status" size="sm" aria-label="Loading" />
            </Center>
          }
        >
          <Outlet />
        </Suspense>
      </AppShell.Main>
      <CommandPalette session={session} />
    </AppShell>
  );
}

function Navigation({ session }: { session: Session }) {
  const { pathname, search } = useLocation();
  const screens = visibleScreens(session);
  const groups = [...new Set(screens.map((screen) => screen.group))];
  return (
    <>
      {groups.map((group) => (
        <div key={group} role="group" aria-label={group} className={classes.group}>
          <Text size="xs" c="dimmed" px="sm" pb={2} aria-hidden="true">
            {group}
          </Text>
          {screens
            .filter((screen) => screen.group === group)
            .map((screen) => {
              const isActive = pathname === `/${screen.path}` || pathname.startsWith(`/${screen.path}/`);
              return (
                <NavLink
                  key={screen.path}
                  component={Link}
                  to={{ pathname: `/${screen.path}`, search: accountQuery(search) }}
                  label={screen.title}
                  leftSection={<screen.icon size={16} />}
                  active={isActive}
                  aria-current={isActive ? "page" : undefined}
                  className={classes.link}
                />
              );
            })}
        </div>
      ))}
    </>
  );
}
