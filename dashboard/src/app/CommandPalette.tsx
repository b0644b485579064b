/** Ctrl-K: go to a screen, choose an account, change the color scheme. */

import { ActionIcon, Button, Kbd, useMantineColorScheme } from "@mantine/core";
import { Spotlight, spotlight, type SpotlightActionGroupData } from "@mantine/spotlight";
import { useLocation, useNavigate } from "react-router";
import type { Session } from "@/api/shapes";
import { IconDeviceDesktop, IconLogout, IconMoon, IconSearch, IconSun, IconUsers } from "@/components/icons";
import { accountQuery, visibleScreens } from "./Shell";
import { useAccounts } from "./session";
import { useSignOut } from "./UserMenu";

export function PaletteButton() {
  return (
    <>
      <Button
        visibleFrom="sm"
        variant="default"
        leftSection={<IconSearch size={14} />}
        rightSection={<Kbd size="xs">Ctrl K</Kbd>}
        onClick={spotlight.open}
      >
        Go to
      </Button>
      <ActionIcon hiddenFrom="sm" size="lg" aria-label="Go to" onClick={spotlight.open}>
        <IconSearch size={18} />
      </ActionIcon>
    </>
  );
}

export function CommandPalette({ session }: { session: Session }) {
  const navigate = useNavigate();
  const { pathname, search } = useLocation();
  const { setColorScheme } = useMantineColorScheme();
  const accounts = useAccounts();
  const signOut = useSignOut();

  const actions: SpotlightActionGroupData[] = [
    {
      group: "Screens",
      actions: visibleScreens(session).map((screen) => ({
        id: screen.path,
        label: screen.title,
        keywords: screen.keywords,
        leftSection: <screen.icon size={18} />,
        onClick: () => void navigate({ pathname: `/${screen.path}`, search: accountQuery(search) }),
      })),
    },
    {
      group: "Accounts",
      actions: (accounts.data ?? []).map((account) => ({
        id: account.id,
        label: account.name.slice(0, 100),
        description: account.id,
        leftSection: <IconUsers size={18} />,
        onClick: () => void navigate({ pathname, search: `?account=${account.id}` }),
      })),
    },
    {
      group: "Appearance and session",
      actions: [
        { id: "light", label: "Light colors", leftSection: <IconSun size={18} />, onClick: () => setColorScheme("light") },
        { id: "dark", label: "Dark colors", leftSection: <IconMoon size={18} />, onClick: () => setColorScheme("dark") },
        {
          id: "auto",
          label: "Colors of the system",
          leftSection: <IconDeviceDesktop size={18} />,
          onClick: () => setColorScheme("auto"),
        },
        { id: "sign-out", label: "Sign out", leftSection: <IconLogout size={18} />, onClick: () => void signOut() },
      ],
    },
  ];
  return (
    <Spotlight
      actions={actions}
      shortcut={["mod + K"]}
      limit={12}
      scrollable
      maxHeight={440}
      nothingFound="Nothing found. Type the name of a screen or an account."
      searchProps={{
        leftSection: <IconSearch size={16} />,
        placeholder: "Go to a screen or an account",
        "aria-label": "Go to a screen or an account",
      }}
    />
  );
}
