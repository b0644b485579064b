/** Members and invitations of an account. */

import { ActionIcon, Button, Group, Modal, Select, Stack, Text, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { client, page, result } from "@/api/client";
import { usePermissions, useSession } from "@/app/session";
import { confirmAction, runAction } from "@/components/confirm";
import { type Column, DataTable } from "@/components/DataTable";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconPlus, IconTrash, IconUsers } from "@/components/icons";
import { Panel } from "@/components/Panel";
import { Name, State } from "@/components/values";
import type { AccountRole, Member } from "./shapes";

const MAX_MEMBERS = 50;

function useRoles(accountId: string) {
  return useQuery({
    queryKey: ["roles", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId } };
      return result<AccountRole[]>(client.GET("/client/v4/accounts/{account_id}/roles", { params }));
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
}

export function Members({ accountId }: { accountId: string }) {
  const { changeAccount } = usePermissions();
  const mayChange = changeAccount(accountId);
  const [isInviting, setIsInviting] = useState(false);
  const roles = useRoles(accountId);
  const { data, error, refetch } = useQuery({
    queryKey: ["members", accountId],
    queryFn: () => {
      const params = { path: { account_id: accountId }, query: { per_page: MAX_MEMBERS } };
      return page<Member>(client.GET("/client/v4/accounts/{account_id}/members", { params }));
    },
  });
  const columns = useColumns(accountId, roles.data ?? [], mayChange);
  const invite = mayChange && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setIsInviting(true)}>
      Invite
    </Button>
  );
  return (
    <>
      <Panel title="Members" actions={invite} isFlush>
        <DataTable
          label="Members"
          columns={columns}
          rows={data?.items}
          rowId={(member) => member.id}
          error={error}
          onRetry={() => void refetch()}
          empty={
            <EmptyState icon={IconUsers} title="No members" action={invite}>
              Invite people by email. They accept when they sign in to the dashboard.
            </EmptyState>
          }
        />
      </Panel>
      {isInviting && <Invite accountId={accountId} roles={roles.data ?? []} onClose={() => setIsInviting(false)} />}
    </>
  );
}

function useColumns(accountId: string, roles: AccountRole[], mayChange: boolean): Column<Member>[] {
  const queries = useQueryClient();
  const session = useSession();
  return useMemo(() => {
    const refresh = () => queries.invalidateQueries({ queryKey: ["members", accountId] });

    async function changeRole(member: Member, roleId: string) {
      const params = { path: { account_id: accountId, member_id: member.id } };
      const put = () =>
        client.PUT("/client/v4/accounts/{account_id}/members/{member_id}", {
          params,
          headers: { "if-match": `"${member.version}"` },
          body: { roles: [{ id: roleId }] },
        });
      await runAction(put, `${member.email} has a new role.`);
      await refresh();
    }

    function remove(member: Member) {
      const isPending = member.status === "pending";
      confirmAction({
        title: isPending ? "Withdraw invitation" : "Remove member",
        object: member.email,
        consequence: isPending ? "The invitation can no longer be accepted." : "The person loses access to the account at once.",
        confirm: isPending ? "Withdraw invitation" : "Remove member",
        done: isPending ? "The invitation is withdrawn." : "The member is removed.",
        action: async () => {
          const params = { path: { account_id: accountId, member_id: member.id } };
          await client.DELETE("/client/v4/accounts/{account_id}/members/{member_id}", { params });
          await refresh();
        },
      });
    }

    return [
      {
        id: "email",
        header: "Person",
        sortBy: (member) => member.email,
        cell: (member) => (
          <div>
            <Name value={member.email} />
            {member.status === "pending" && (
              <Text size="xs" c="dimmed" hiddenFrom="sm">
                pending
              </Text>
            )}
            {member.user.first_name && (
              <Text size="xs" c="dimmed" component="div">
                <Name value={`${member.user.first_name} ${member.user.last_name ?? ""}`} />
              </Text>
            )}
          </div>
        ),
      },
      {
        id: "status",
        header: "Status",
        isWideOnly: true,
        sortBy: (member) => member.status,
        cell: (member) => <State value={member.status === "pending" ? "pending" : "active"} />,
      },
      {
        id: "role",
        header: "Role",
        width: 250,
        cell: (member) =>
          mayChange ? (
            <Select
              size="xs"
              miw={140}
              aria-label={`Role of ${member.email}`}
              allowDeselect={false}
              value={member.roles[0]?.id ?? null}
              data={roles.map((role) => ({ value: role.id, label: role.name }))}
              onChange={(roleId) => roleId && void changeRole(member, roleId)}
            />
          ) : (
            member.roles.map((role) => role.name).join(", ")
          ),
      },
      {
        id: "actions",
        header: "Actions",
        align: "right",
        cell: (member) =>
          mayChange && (
            <ActionIcon
              aria-label={`Remove ${member.email}`}
              color="red"
              disabled={member.user.id !== null && member.user.id === session.user_id}
              onClick={() => remove(member)}
            >
              <IconTrash />
            </ActionIcon>
          ),
      },
    ];
  }, [accountId, roles, mayChange, queries, session.user_id]);
}

function Invite({ accountId, roles, onClose }: { accountId: string; roles: AccountRole[]; onClose: () => void }) {
  const queries = useQueryClient();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useForm({
    initialValues: { email: "", role: roles.at(-1)?.id ?? "" },
    validate: { email: (email) => (/^\S+@\S+$/.test(email) ? null : "Enter an email address.") },
  });

  async function invite({ email, role }: { email: string; role: string }) {
    setIsBusy(true);
    setError(null);
    try {
      const params = { path: { account_id: accountId } };
      await client.POST("/client/v4/accounts/{account_id}/members", { params, body: { email, roles: [role] } });
      await queries.invalidateQueries({ queryKey: ["members", accountId] });
      onClose();
    } catch (failure) {
      setError(failure);
      setIsBusy(false);
    }
  }

  return (
    <Modal opened onClose={onClose} title="Invite a person">
      <form onSubmit={form.onSubmit((values) => void invite(values))} noValidate>
        <Stack gap="md">
          <TextInput label="Email" type="email" required data-autofocus {...form.getInputProps("email")} />
          <Select
            label="Role"
            allowDeselect={false}
            data={roles.map((role) => ({ value: role.id, label: role.name }))}
            description={roles.find((role) => role.id === form.values.role)?.description}
            {...form.getInputProps("role")}
          />
          <Text size="xs" c="dimmed">
            No email is sent. The person sees the invitation on the Accounts screen after signing in with this address.
          </Text>
          {error !== null && <ErrorState error={error} title="The person was not invited" />}
          <Group justify="flex-end" gap="xs">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={isBusy}>
              Invite
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
