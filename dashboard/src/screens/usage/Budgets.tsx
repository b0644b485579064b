/** Monthly budgets and their alerts. */

import { ActionIcon, Button, Group, Modal, NumberInput, Progress, Select, Stack, Switch, TagsInput, Text } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { client } from "@/api/client";
import { usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconCoin, IconEdit, IconPlus, IconTrash } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Money, Name, Num, Time } from "@/components/values";
import { formatPercent } from "@/lib/format";
import { useTokens } from "@/screens/tokens/queries";
import { useAlerts, useBudgets, useForecast } from "./queries";
import type { Budget, BudgetAlert } from "./shapes";

const WHOLE_ACCOUNT = "";
const BUDGETS_PATH = "/client/v4/accounts/{account_id}/ai/usage/budgets";

function AmountOf({ value, unit }: { value: number; unit: Budget["unit"] }) {
  if (unit === "usd") return <Money value={value} />;
  return (
    <>
      <Num value={value} compact /> neurons
    </>
  );
}

function useTokenNames(accountId: string): Map<string, string> {
  const { data } = useTokens(accountId);
  return useMemo(() => new Map((data ?? []).map((token) => [token.id, token.name])), [data]);
}

export function BudgetsPanel({ accountId }: { accountId: string }) {
  const { changeAccount } = usePermissions();
  const mayChange = changeAccount(accountId);
  const budgets = useBudgets(accountId);
  const [edited, setEdited] = useState<Budget | "new" | null>(null);
  const columns = useColumns(accountId, mayChange, setEdited);
  const create = mayChange && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setEdited("new")}>
      Set budget
    </Button>
  );
  return (
    <Stack gap="md">
      <Panel title="Monthly budgets" actions={create} isFlush>
        <DataTable
          label="Budgets"
          columns={columns}
          rows={budgets.data}
          rowId={(budget) => `${budget.api_token_id} ${budget.unit}`}
          error={budgets.error}
          onRetry={() => void budgets.refetch()}
          sortParameter="budgets"
          empty={
            <EmptyState icon={IconCoin} title="No budget" action={create}>
              A budget limits what the account, or one API token, spends in a month, and raises alerts before.
            </EmptyState>
          }
        />
      </Panel>
      <Alerts accountId={accountId} />
      {edited && <BudgetForm accountId={accountId} budget={edited === "new" ? null : edited} onClose={() => setEdited(null)} />}
    </Stack>
  );
}

function useColumns(accountId: string, mayChange: boolean, onEdit: (budget: Budget) => void): Column<Budget>[] {
  const queries = useQueryClient();
  const names = useTokenNames(accountId);
  const forecast = useForecast(accountId);
  return useMemo(() => {
    const subject = (budget: Budget) =>
      budget.api_token_id ? `API token ${names.get(budget.api_token_id) ?? budget.api_token_id}` : "Whole account";

    function remove(budget: Budget) {
      confirmAction({
        title: "Remove budget",
        object: subject(budget),
        consequence: "Spending is no longer limited by this budget.",
        confirm: "Remove budget",
        done: "The budget is removed.",
        action: async () => {
          const query = { api_token_id: budget.api_token_id ?? WHOLE_ACCOUNT, unit: budget.unit };
          await client.DELETE(BUDGETS_PATH, { params: { path: { account_id: accountId }, query } });
          await queries.invalidateQueries({ queryKey: ["budgets", accountId] });
        },
      });
    }

    return [
      { id: "subject", header: "Applies to", sortBy: subject, cell: (budget) => <Name value={subject(budget)} /> },
      {
        id: "amount",
        header: "Amount per month",
        align: "right",
        sortBy: (budget) => budget.amount,
        cell: (budget) => <AmountOf value={budget.amount} unit={budget.unit} />,
      },
      {
        id: "used",
        header: "Used",
        isWideOnly: true,
        width: 180,
        cell: (budget) => {
          const used = budget.api_token_id ? undefined : forecast.data?.used[budget.unit];
          return used === undefined ? null : <Used share={used / budget.amount} />;
        },
      },
      {
        id: "refuses",
        header: "When spent",
        isWideOnly: true,
        cell: (budget) => (budget.refuses ? "calls are refused" : "alerts only"),
      },
      {
        id: "alerts",
        header: "Alerts at",
        isWideOnly: true,
        cell: (budget) => budget.alert_percents.map((percent) => `${percent} %`).join(", ") || "never",
      },
      {
        id: "actions",
        header: "Actions",
        align: "right",
        cell: (budget) =>
          mayChange && (
            <Group gap={2} justify="flex-end" wrap="nowrap">
              <ActionIcon aria-label={`Edit the budget: ${subject(budget).slice(0, 100)}`} onClick={() => onEdit(budget)}>
                <IconEdit />
              </ActionIcon>
              <ActionIcon aria-label={`Remove the budget: ${subject(budget).slice(0, 100)}`} color="red" onClick={() => remove(budget)}>
                <IconTrash />
              </ActionIcon>
            </Group>
          ),
      },
    ];
  }, [accountId, mayChange, onEdit, queries, names, forecast.data]);
}

function Used({ share }: { share: number }) {
  const color = share >= 1 ? "red" : share >= 0.8 ? "yellow" : "teal";
  return (
    <Group gap="xs" wrap="nowrap">
      <Progress value={Math.min(100, share * 100)} color={color} flex={1} size="sm" aria-label="Share of the budget" />
      <Text size="xs">{formatPercent(share)}</Text>
    </Group>
  );
}

function BudgetForm({ accountId, budget, onClose }: { accountId: string; budget: Budget | null; onClose: () => void }) {
  const queries = useQueryClient();
  const names = useTokenNames(accountId);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useForm({
    initialValues: {
      token: budget?.api_token_id ?? WHOLE_ACCOUNT,
      unit: budget?.unit ?? "usd",
      amount: budget?.amount ?? ("" as number | string),
      refuses: budget?.refuses ?? true,
      percents: (budget?.alert_percents ?? [50, 80, 100]).map(String),
    },
    validate: {
      amount: (amount) => (Number(amount) > 0 ? null : "Enter an amount greater than 0."),
      percents: (percents) =>
        percents.every((text) => /^\d{1,3}$/.test(text) && Number(text) >= 1) ? null : "Enter whole percentages of at least 1.",
    },
  });

  async function save(values: typeof form.values) {
    setIsBusy(true);
    setError(null);
    try {
      await client.PUT(BUDGETS_PATH, {
        params: { path: { account_id: accountId } },
        body: {
          api_token_id: values.token || null,
          unit: values.unit,
          amount: Number(values.amount),
          refuses: values.refuses,
          alert_percents: values.percents.map(Number),
        },
      });
      await queries.invalidateQueries({ queryKey: ["budgets", accountId] });
      onClose();
    } catch (failure) {
      setError(failure);
      setIsBusy(false);
    }
  }

  const tokens = [...names].map(([value, label]) => ({ value, label: label.slice(0, 80) }));
  return (
    <Modal opened onClose={onClose} title={budget ? "Change budget" : "Set budget"}>
      <form onSubmit={form.onSubmit((values) => void save(values))} noValidate>
        <Stack gap="md">
          <Select
            label="Applies to"
            allowDeselect={false}
            searchable
            disabled={budget !== null}
            data={[{ value: WHOLE_ACCOUNT, label: "Whole account" }, ...tokens]}
            {...form.getInputProps("token")}
          />
          <Group grow align="start">
            <NumberInput label="Amount per month" min={0} required data-autofocus {...form.getInputProps("amount")} />
            <Select
              label="Unit"
              allowDeselect={false}
              disabled={budget !== null}
              data={[
                { value: "usd", label: "US dollars" },
                { value: "neurons", label: "Neurons" },
              ]}
              {...form.getInputProps("unit")}
            />
          </Group>
          <Switch
            label="Refuse calls when the budget is spent"
            description="Otherwise the budget only raises alerts."
            {...form.getInputProps("refuses", { type: "checkbox" })}
          />
          <TagsInput label="Alerts at percent of the amount" {...form.getInputProps("percents")} />
          {error !== null && <ErrorState error={error} title="The budget was not saved" />}
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={isBusy}>
              Save budget
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function Alerts({ accountId }: { accountId: string }) {
  const { data, error, refetch } = useAlerts(accountId);
  const names = useTokenNames(accountId);
  const columns = useMemo(
    (): Column<BudgetAlert>[] => [
      { id: "at", header: "When", sortBy: (alert) => alert.at, cell: (alert) => <Time value={alert.at} /> },
      {
        id: "subject",
        header: "Budget",
        cell: (alert) => <Name value={alert.api_token_id ? (names.get(alert.api_token_id) ?? alert.api_token_id) : "Whole account"} />,
      },
      { id: "month", header: "Month", isWideOnly: true, cell: (alert) => alert.month },
      { id: "percent", header: "Threshold", align: "right", cell: (alert) => `${alert.percent} %` },
      { id: "used", header: "Used", align: "right", cell: (alert) => <AmountOf value={alert.used} unit={alert.unit} /> },
      {
        id: "amount",
        header: "Of",
        align: "right",
        isWideOnly: true,
        cell: (alert) => <AmountOf value={alert.amount} unit={alert.unit} />,
      },
    ],
    [names],
  );
  return (
    <Panel title="Alerts" isFlush>
      <DataTable
        label="Alerts"
        columns={columns}
        rows={data}
        rowId={(alert) => `${alert.at} ${alert.percent} ${alert.api_token_id} ${alert.unit}`}
        error={error}
        onRetry={() => void refetch()}
        sortParameter="alerts"
        empty={<EmptyState title="No alert">An alert is raised when spending passes a threshold of a budget.</EmptyState>}
      />
    </Panel>
  );
}
