/** The operator's settings of an account: status, plan, limits, residency, retention. Guards against lost updates. */

import { Button, Group, Select, Stack, TagsInput, Textarea } from "@mantine/core";
import { useForm } from "@mantine/form";
import { notifications } from "@mantine/notifications";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { client, result } from "@/api/client";
import { usePermissions } from "@/app/session";
import { confirmAction } from "@/components/confirm";
import { ErrorState } from "@/components/ErrorState";
import { Panel } from "@/components/Panel";
import { SaveError } from "@/components/SaveError";
import type { Operation } from "./shapes";

export function OperationForm({ accountId }: { accountId: string }) {
  const params = { path: { account_id: accountId } };
  const { data, error, refetch } = useQuery({
    queryKey: ["operation", accountId],
    queryFn: () => result<Operation>(client.GET("/client/v4/accounts/{account_id}/operation", { params })),
    refetchOnWindowFocus: false, // a new version would replace what the user is typing
  });
  if (error && !data) return <ErrorState error={error} onRetry={() => void refetch()} />;
  if (!data) return null;
  return <Form accountId={accountId} operation={data} key={data.version} onReload={() => void refetch()} />;
}

function valuesOf(operation: Operation) {
  return {
    status: operation.status,
    plan: operation.plan,
    limits: operation.limits,
    retention: operation.retention,
    countries: operation.region?.countries ?? [],
    jurisdictions: operation.region?.jurisdictions ?? [],
  };
}

interface FormProps {
  accountId: string;
  operation: Operation;
  onReload: () => void;
}

function Form({ accountId, operation, onReload }: FormProps) {
  const { changePlatform } = usePermissions();
  const queries = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useForm({ initialValues: valuesOf(operation) });

  async function save(values: typeof form.values) {
    setIsBusy(true);
    setError(null);
    const { countries, jurisdictions, ...rest } = values;
    const hasRegion = countries.length > 0 || jurisdictions.length > 0;
    try {
      const changed = await result<Operation>(
        client.PUT("/client/v4/accounts/{account_id}/operation", {
          params: { path: { account_id: accountId } },
          headers: { "if-match": `"${operation.version}"` },
          body: { ...rest, region: hasRegion ? { countries, jurisdictions } : null },
        }),
      );
      queries.setQueryData(["operation", accountId], changed);
      void queries.invalidateQueries({ queryKey: ["accounts"] });
      notifications.show({ message: "The account is changed.", color: "teal" });
    } catch (failure) {
      setError(failure);
    } finally {
      setIsBusy(false);
    }
  }

  function submit(values: typeof form.values) {
    if (values.status === "blocked" && operation.status !== "blocked") {
      confirmAction({
        title: "Block account",
        object: accountId,
        consequence: "All calls of the account are refused until it is active again.",
        confirm: "Block account",
        action: () => save(values),
      });
    } else {
      void save(values);
    }
  }

  const fixed = { disabled: !changePlatform };
  return (
    <Panel description="Only platform administrators change these settings.">
      <form onSubmit={form.onSubmit(submit)}>
        <Stack gap="md" maw={640}>
          <Group grow align="start">
            <Select
              label="Status"
              allowDeselect={false}
              data={[
                { value: "active", label: "Active" },
                { value: "blocked", label: "Blocked: all calls are refused" },
              ]}
              {...fixed}
              {...form.getInputProps("status")}
            />
            <Select label="Plan" allowDeselect={false} data={["free", "paid", "enterprise"]} {...fixed} {...form.getInputProps("plan")} />
          </Group>
          <Textarea
            label="Rate limits"
            description="Replace the platform's limits. For example: account.calls=20, text-generation=300/60, account.tokens=100000/60"
            autosize
            minRows={2}
            placeholder="The platform's limits apply"
            {...fixed}
            {...form.getInputProps("limits")}
          />
          <Select
            label="Retention"
            allowDeselect={false}
            data={[
              { value: "standard", label: "Standard: batches and stored responses are kept for a time" },
              { value: "zero", label: "Zero: no content is stored after a call" },
            ]}
            {...fixed}
            {...form.getInputProps("retention")}
          />
          <Group grow align="end">
            <TagsInput
              label="Countries"
              description="Calls run only in these countries (two letters, such as DE)."
              {...fixed}
              {...form.getInputProps("countries")}
            />
            <TagsInput
              label="Jurisdictions"
              description="Or in these jurisdictions, such as eu."
              data={["eu", "eea"]}
              {...fixed}
              {...form.getInputProps("jurisdictions")}
            />
          </Group>
          {error !== null && <SaveError error={error} title="The account was not changed" object="account" onReload={onReload} />}
          {changePlatform && (
            <Group>
              <Button type="submit" loading={isBusy} disabled={!form.isDirty()}>
                Save
              </Button>
            </Group>
          )}
        </Stack>
      </form>
    </Panel>
  );
}
