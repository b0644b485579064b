/** Choice of the account that the screens show. */

import { Combobox, InputBase, ScrollArea, useCombobox } from "@mantine/core";
import { useState } from "react";
import { useLocation, useSearchParams } from "react-router";
import { replaceInQuery } from "@/lib/query-state";
import { SCREENS } from "./screens";
import { useAccountId, useAccounts, useChosenAccountId, useSession } from "./session";

const ALL = "";
const MAX_SHOWN = 50;

export function AccountSwitcher() {
  const session = useSession();
  const { pathname } = useLocation();
  const isOfOneAccount = SCREENS.some((screen) => screen.scope === "account" && pathname.startsWith(`/${screen.path}`));
  const filter = useChosenAccountId();
  const only = useAccountId();
  const chosen = isOfOneAccount ? only : filter;
  const accounts = useAccounts();
  const [, setQuery] = useSearchParams();
  const [search, setSearch] = useState("");
  const combobox = useCombobox({
    onDropdownOpen: () => combobox.focusSearchInput(),
    onDropdownClose: () => {
      setSearch("");
      combobox.focusTarget();
    },
  });
  const known = accounts.data ?? [];
  const name = chosen
    ? (known.find((account) => account.id === chosen)?.name ??
      session.memberships.find((item) => item.account_id === chosen)?.account_name ??
      chosen)
    : isOfOneAccount
      ? "No account"
      : "All accounts";
  const found = known.filter((account) => `${account.name} ${account.id}`.toLowerCase().includes(search.toLowerCase()));

  function choose(id: string) {
    combobox.closeDropdown();
    setQuery((before) => replaceInQuery(before, { account: id, page: null }));
  }

  return (
    <Combobox store={combobox} onOptionSubmit={choose} width={300} position="bottom-start">
      <Combobox.Target>
        <InputBase
          component="button"
          type="button"
          size="xs"
          pointer
          w={{ base: 150, sm: 220 }}
          aria-label={`Account: ${name.slice(0, 100)}`}
          rightSection={<Combobox.Chevron />}
          rightSectionPointerEvents="none"
          onClick={() => combobox.toggleDropdown()}
        >
          <span className="ellipsis" dir="auto" style={{ display: "block" }}>
            {name.slice(0, 200)}
          </span>
        </InputBase>
      </Combobox.Target>
      <Combobox.Dropdown>
        <Combobox.Search
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value)}
          placeholder="Find an account"
          aria-label="Find an account"
        />
        <Combobox.Options>
          <ScrollArea.Autosize mah={320} type="auto">
            {session.platform_role !== null && !isOfOneAccount && search === "" && (
              <Combobox.Option value={ALL} active={chosen === null}>
                All accounts
              </Combobox.Option>
            )}
            {found.slice(0, MAX_SHOWN).map((account) => (
              <Combobox.Option key={account.id} value={account.id} active={account.id === chosen}>
                <span className="ellipsis" dir="auto" style={{ display: "block" }}>
                  {account.name.slice(0, 200)}
                </span>
              </Combobox.Option>
            ))}
            {found.length > MAX_SHOWN && <Combobox.Empty>Type to find one of {found.length} accounts</Combobox.Empty>}
            {found.length === 0 && <Combobox.Empty>{accounts.isPending ? "Loading…" : "No account"}</Combobox.Empty>}
          </ScrollArea.Autosize>
        </Combobox.Options>
      </Combobox.Dropdown>
    </Combobox>
  );
}
