/** The signed-in user: color scheme and sign-out. */

import { ActionIcon, Menu, Text, useMantineColorScheme } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "react-router";
import { requestJson, setCsrfToken } from "@/api/client";
import type { Session } from "@/api/shapes";
import { runAction } from "@/components/confirm";
import { IconCheck, IconDeviceDesktop, IconLogout, IconMoon, IconSun, IconUser } from "@/components/icons";
import { SESSION_KEY } from "./session";

const SCHEMES = [
  { value: "light", label: "Light", icon: IconSun },
  { value: "dark", label: "Dark", icon: IconMoon },
  { value: "auto", label: "Like the system", icon: IconDeviceDesktop },
] as const;

/** Return a function that ends the session and forgets everything that was loaded. */
export function useSignOut(): () => Promise<void> {
  const queries = useQueryClient();
  const navigate = useNavigate();
  return async () => {
    const isDone = await runAction(() => requestJson("POST", "/admin/sign-out"), "");
    if (!isDone) return;
    setCsrfToken(null);
    queries.clear();
    queries.setQueryData(SESSION_KEY, null);
    await navigate("/sign-in");
  };
}

export function UserMenu({ session }: { session: Session }) {
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  const signOut = useSignOut();
  return (
    <Menu position="bottom-end" width={230}>
      <Menu.Target>
        <ActionIcon size="lg" aria-label="User menu">
          <IconUser size={18} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label component="div">
          <Text size="sm" fw={600} c="var(--mantine-color-text)" className="name" lineClamp={2} dir="auto">
            {session.name || session.email}
          </Text>
          <Text size="xs" className="name" lineClamp={2}>
            {session.email}
          </Text>
          <Text size="xs">{roleText(session)}</Text>
        </Menu.Label>
        <Menu.Divider />
        {SCHEMES.map((scheme) => (
          <Menu.Item
            key={scheme.value}
            leftSection={<scheme.icon />}
            rightSection={colorScheme === scheme.value ? <IconCheck size={14} /> : null}
            onClick={() => setColorScheme(scheme.value)}
          >
            {scheme.label}
          </Menu.Item>
        ))}
        <Menu.Divider />
        <Menu.Item leftSection={<IconLogout />} onClick={() => void signOut()}>
          Sign out
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}

function roleText(session: Session): string {
  if (session.platform_role) return `Platform ${session.platform_role}`;
  const count = session.memberships.length;
  return count === 1 ? `Account ${session.memberships[0]?.role}` : `Member of ${count} accounts`;
}
