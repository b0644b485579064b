/** Fields of an API token. */

import { Alert, Button, Checkbox, Collapse, Group, SegmentedControl, SimpleGrid, Stack, Switch, TagsInput, Text, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useState } from "react";
import { ErrorState } from "@/components/ErrorState";
import { IconChevronDown, IconChevronRight } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { SaveError } from "@/components/SaveError";
import { useModelNames, usePermissionGroups } from "./queries";
import type { TokenValues } from "./token-form";

const GROUP_HELP: Record<string, string> = {
  "Workers AI Read": "Call models",
  "Workers AI Write": "Call models, upload and remove finetunes",
  "Account Settings Read": "Read the account, its usage and its audit log",
  "Account Settings Write": "Change the account, its budgets and members",
  "Account API Tokens Read": "List the account's API tokens",
  "Account API Tokens Write": "Create, change and revoke the account's API tokens",
};

interface Props {
  accountId: string;
  initial: TokenValues;
  submit: string;
  onSubmit: (values: TokenValues) => Promise<void>;
  onCancel: () => void;
  /** Loads the token again, after someone else has changed it. */
  onReload?: () => void;
  /** The token has policies that the form cannot show; they stay as they are. */
  hasOtherPolicies?: boolean;
}

export function TokenForm(props: Props) {
  const { accountId, initial, submit, onSubmit, onCancel, onReload, hasOtherPolicies = false } = props;
  const groups = usePermissionGroups(accountId);
  const models = useModelNames(accountId);
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const hasRestrictions = Boolean(initial.networks.length || initial.blockedNetworks.length || initial.notBefore || initial.limits);
  const [isOpen, setIsOpen] = useState(hasRestrictions);
  const form = useForm<TokenValues>({
    initialValues: initial,
    validate: {
      name: (name) => (name.trim() ? null : "Give the token a name by which you recognize it later."),
      groups: (ids) => (ids.length > 0 || hasOtherPolicies ? null : "Choose at least one permission."),
      models: (names, values) => (values.onlySomeModels && names.length === 0 ? "Choose at least one model." : null),
    },
  });

  async function save(values: TokenValues) {
    setIsBusy(true);
    setError(null);
    try {
      await onSubmit(values);
    } catch (failure) {
      setError(failure);
    } finally {
      setIsBusy(false);
    }
  }

  return (
    <form onSubmit={form.onSubmit((values) => void save(values))} noValidate>
      <Stack gap="md" maw={760}>
        <Panel>
          <Stack gap="md">
            <TextInput label="Name" placeholder="my-app" required data-autofocus {...form.getInputProps("name")} />
            {hasOtherPolicies ? (
              <Alert color="blue">This token has several policies, which this page does not change.</Alert>
            ) : (
              <Checkbox.Group label="Permissions" required {...form.getInputProps("groups")}>
                <SimpleGrid cols={{ base: 1, sm: 2 }} mt={6} spacing="sm">
                  {(groups.data ?? []).map((group) => (
                    <Checkbox key={group.id} value={group.id} label={group.name} description={GROUP_HELP[group.name]} />
                  ))}
                </SimpleGrid>
              </Checkbox.Group>
            )}
            {groups.error && <ErrorState error={groups.error} onRetry={() => void groups.refetch()} />}
            <div>
              <Text size="sm" fw={500} id="models-label" mb={4}>
                Models
              </Text>
              <SegmentedControl
                aria-labelledby="models-label"
                data={[
                  { value: "all", label: "All models" },
                  { value: "some", label: "Only some" },
                ]}
                value={form.values.onlySomeModels ? "some" : "all"}
                onChange={(value) => form.setFieldValue("onlySomeModels", value === "some")}
              />
              {form.values.onlySomeModels && (
                <TagsInput
                  mt="xs"
                  aria-label="Allowed models"
                  placeholder="Choose or type a model"
                  data={models.data ?? []}
                  {...form.getInputProps("models")}
                />
              )}
            </div>
            <TextInput
              label="Expires"
              description="Empty means never. In your time zone."
              type="datetime-local"
              maw={260}
              {...form.getInputProps("expiresOn")}
            />
          </Stack>
        </Panel>
        <Panel>
          <Button
            variant="subtle"
            color="gray"
            px={0}
            aria-expanded={isOpen}
            leftSection={isOpen ? <IconChevronDown size={14} /> : <IconChevronRight size={14} />}
            onClick={() => setIsOpen(!isOpen)}
          >
            Addresses, start time and limits
          </Button>
          <Collapse expanded={isOpen}>
            <Stack gap="md" pt="sm">
              <TagsInput
                label="Usable only from"
                description="Networks such as 10.0.0.0/8. Empty means everywhere."
                {...form.getInputProps("networks")}
              />
              <TagsInput
                label="Not usable from"
                description="Networks that are refused even if they are listed above."
                {...form.getInputProps("blockedNetworks")}
              />
              <TextInput
                label="Not before"
                description="Empty means now. In your time zone."
                type="datetime-local"
                maw={260}
                {...form.getInputProps("notBefore")}
              />
              <TextInput
                label="Rate limits"
                description="Replace the account's limits, such as token=100/60 for 100 requests in 60 seconds."
                placeholder="token=100/60"
                {...form.getInputProps("limits")}
              />
              <Switch label="Disabled" {...form.getInputProps("isDisabled", { type: "checkbox" })} />
            </Stack>
          </Collapse>
        </Panel>
        {error !== null && <SaveError error={error} title="The token was not saved" object="token" onReload={onReload} />}
        <Group gap="xs">
          <Button type="submit" loading={isBusy}>
            {submit}
          </Button>
          <Button variant="default" onClick={onCancel}>
            Cancel
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
