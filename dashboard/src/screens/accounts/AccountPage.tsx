/** One account: settings, members, limits and rules, removal. */

import { Button, Group, Stack, Switch, Tabs, Text, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { notifications } from "@mantine/notifications";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { client, versioned } from "@/api/client";
import { SESSION_KEY, usePermissions } from "@/app/session";
import { BudgetsPanel } from "@/screens/usage/Budgets";
import { confirmAction } from "@/components/confirm";
import { CopyButton } from "@/components/CopyButton";
import { ErrorState } from "@/components/ErrorState";
import { PageHeader } from "@/components/PageHeader";
import { Panel } from "@/components/Panel";
import { SaveError } from "@/components/SaveError";
import { TabList } from "@/components/TabList";
import { Time } from "@/components/values";
import { useFilters } from "@/lib/query-state";
import { DisabledModels } from "./DisabledModels";
import { Members } from "./Members";
import { OperationForm } from "./OperationForm";
import type { AccountDetail } from "./shapes";

const DEFAULTS = { tab: "settings" };

export function AccountPage() {
  const { accountId = "" } = useParams();
  const { platform, changeAccount } = usePermissions();
  const [{ tab }, setFilters] = useFilters(DEFAULTS);
  const { data: account, error, refetch } = useQuery({
    queryKey: ["accounts", "one", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId } };
      return versioned<AccountDetail>(client.GET("/client/v4/accounts/{account_id}", { params }));
    },
    refetchOnWindowFocus: false, // a new version would replace what the user is typing
  });
  if (error) return <ErrorState error={error} title="The account could not be loaded" onRetry={() => void refetch()} />;
  if (!account) return <PageHeader title="Account" />;
  const search = `?account=${accountId}`;
  return (
    <>
      <PageHeader
        title={account.name}
        description={
          <Group gap={4}>
            <span className="mono">{account.id}</span>
            <CopyButton value={account.id} label="Copy account id" />
            <span>
              created <Time value={account.created_on} relative />
            </span>
          </Group>
        }
        actions={
          <>
            <Button component={Link} to={{ pathname: "/tokens", search }} variant="default">
              API tokens
            </Button>
            <Button component={Link} to={{ pathname: "/playground", search }} variant="default">
              Playground
            </Button>
          </>
        }
      />
      <Tabs value={tab} onChange={(value) => setFilters({ tab: value })}>
        <TabList mb="md">
          <Tabs.Tab value="settings">Settings</Tabs.Tab>
          <Tabs.Tab value="members">Members</Tabs.Tab>
          <Tabs.Tab value="budgets">Budgets</Tabs.Tab>
          {platform && <Tabs.Tab value="operation">Plan and limits</Tabs.Tab>}
          {platform && <Tabs.Tab value="models">Models</Tabs.Tab>}
        </TabList>
        <Tabs.Panel value="settings">
          <SettingsForm
            account={account}
            mayChange={changeAccount(accountId)}
            onReload={() => void refetch()}
            key={account.etag}
          />
        </Tabs.Panel>
        <Tabs.Panel value="members">
          <Members accountId={accountId} />
        </Tabs.Panel>
        <Tabs.Panel value="budgets">
          <BudgetsPanel accountId={accountId} />
        </Tabs.Panel>
        {platform && (
          <>
            <Tabs.Panel value="operation">
              <OperationForm accountId={accountId} />
            </Tabs.Panel>
            <Tabs.Panel value="models">
              <DisabledModels accountId={accountId} />
            </Tabs.Panel>
          </>
        )}
      </Tabs>
    </>
  );
}

interface SettingsFormProps {
  account: AccountDetail & { etag: string };
  mayChange: boolean;
  onReload: () => void;
}

function SettingsForm({ account, mayChange, onReload }: SettingsFormProps) {
  const queries = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useForm({
    initialValues: {
      name: account.name,
      abuse_contact_email: account.settings.abuse_contact_email ?? "",
      enforce_twofactor: account.settings.enforce_twofactor,
    },
  });

  async function save(values: typeof form.values) {
    setIsBusy(true);
    setError(null);
    try {
      const settings = {
        enforce_twofactor: values.enforce_twofactor,
        abuse_contact_email: values.abuse_contact_email || null,
      };
      const params = { path: { account_id: account.id } };
      const body = { name: values.name.trim(), settings };
      await client.PUT("/client/v4/accounts/{account_id}", { params, body, headers: { "if-match": account.etag } });
      await queries.invalidateQueries({ queryKey: ["accounts"] });
      await queries.invalidateQueries({ queryKey: SESSION_KEY });
      notifications.show({ message: "The settings are saved.", color: "teal" });
    } catch (failure) {
      setError(failure);
    } finally {
      setIsBusy(false);
    }
  }

  return (
    <Stack gap="md" maw={640}>
      <Panel>
        <form onSubmit={form.onSubmit((values) => void save(values))}>
          <Stack gap="md">
            <TextInput label="Name" required readOnly={!mayChange} {...form.getInputProps("name")} />
            <TextInput
              label="Abuse contact"
              description="Email address for reports of abuse"
              type="email"
              readOnly={!mayChange}
              {...form.getInputProps("abuse_contact_email")}
            />
            <Switch
              label="Require two-factor authentication"
              disabled={!mayChange}
              {...form.getInputProps("enforce_twofactor", { type: "checkbox" })}
            />
            {error !== null && <SaveError error={error} title="The settings were not saved" object="account" onReload={onReload} />}
            {mayChange && (
              <Group>
                <Button type="submit" loading={isBusy} disabled={!form.isDirty()}>
                  Save
                </Button>
              </Group>
            )}
          </Stack>
        </form>
      </Panel>
      {mayChange && <DeletePanel account={account} />}
    </Stack>
  );
}

function DeletePanel({ account }: { account: AccountDetail }) {
  const navigate = useNavigate();
  const queries = useQueryClient();
  function remove() {
    confirmAction({
      title: "Delete account",
      object: account.name,
      consequence: "All its API tokens stop working and its members lose access. This cannot be undone.",
      confirm: "Delete account",
      done: "The account is deleted.",
      action: async () => {
        await client.DELETE("/client/v4/accounts/{account_id}", { params: { path: { account_id: account.id } } });
        await navigate("/accounts");
        queries.removeQueries({ queryKey: ["accounts", "one", account.id] });
        await queries.invalidateQueries({ predicate: ({ queryKey }) => !queryKey.includes(account.id) });
      },
    });
  }
  return (
    <Panel title="Delete this account">
      <Group justify="space-between" gap="sm">
        <Text size="sm" c="dimmed" flex="1 1 240px">
          Revokes all API tokens of the account. Its usage stays in the ledger.
        </Text>
        <Button color="red" variant="outline" onClick={remove}>
          Delete account
        </Button>
      </Group>
    </Panel>
  );
}
