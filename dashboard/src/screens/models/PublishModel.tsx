/** Publish a model from a hub repository or from a folder of the object store. */

import { Button, Group, Modal, NumberInput, SegmentedControl, Stack, Text, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useLocation, useNavigate } from "react-router";
import { client, result } from "@/api/client";
import { accountQuery } from "@/app/Shell";
import { ErrorState } from "@/components/ErrorState";
import { IconUpload } from "@/components/icons";
import type { Publication } from "./platform";

interface Values {
  source: "hub" | "bucket";
  repository: string;
  revision: string;
  prefix: string;
  file: string;
  name: string;
  input: number | "";
  output: number | "";
}

const MODEL_ID = /^@(cf|hf)\/[^/\s]+\/[^/\s]+$/;

export function PublishButton() {
  const [isOpen, { open, close }] = useDisclosure(false);
  return (
    <>
      <Button leftSection={<IconUpload size={14} />} onClick={open}>
        Publish a model
      </Button>
      <Modal opened={isOpen} onClose={close} title="Publish a model" size="lg">
        <PublishForm onDone={close} />
      </Modal>
    </>
  );
}

function PublishForm({ onDone }: { onDone: () => void }) {
  const navigate = useNavigate();
  const { search } = useLocation();
  const queries = useQueryClient();
  const form = useForm<Values>({
    initialValues: { source: "hub", repository: "", revision: "main", prefix: "", file: "", name: "", input: "", output: "" },
    validate: {
      repository: (value, { source }) =>
        source === "hub" && !/^[\w.-]+\/[\w.-]+$/.test(value) ? "Name a repository, such as org/model." : null,
      prefix: (value, { source }) => (source === "bucket" && value === "" ? "Name a folder, such as uploads/my-model." : null),
      name: (value) => (MODEL_ID.test(value) ? null : "A model id has the form @cf/author/name."),
      output: (value, { input }) => ((value === "") === (input === "") ? null : "Give both prices or none."),
    },
  });
  const publish = useMutation({
    mutationFn: (values: Values) => result<Publication>(client.POST("/client/v4/publications", { body: bodyOf(values) })),
    onSuccess: async () => {
      await queries.invalidateQueries({ queryKey: ["publications"] });
      onDone();
      const query = new URLSearchParams(accountQuery(search));
      query.set("tab", "publications");
      await navigate({ pathname: "/models", search: `?${query}` });
    },
  });
  const { source } = form.values;
  return (
    <form onSubmit={form.onSubmit((values) => publish.mutate(values))}>
      <Stack gap="sm">
        <SegmentedControl
          aria-label="Source"
          data={[
            { value: "hub", label: "From the hub" },
            { value: "bucket", label: "From the object store" },
          ]}
          {...form.getInputProps("source")}
        />
        {source === "hub" ? (
          <Group grow align="start">
            <TextInput
              label="Repository"
              description="On the Hugging Face hub, or on the mirror that the operator chose"
              placeholder="org/model"
              required
              {...form.getInputProps("repository")}
              onBlur={(event) => suggestName(event.currentTarget.value, form)}
            />
            <TextInput label="Revision" description="Branch, tag or commit" {...form.getInputProps("revision")} />
          </Group>
        ) : (
          <TextInput
            label="Folder"
            description="Prefix in the platform's object store"
            placeholder="uploads/my-model"
            required
            {...form.getInputProps("prefix")}
          />
        )}
        <TextInput
          label="GGUF file"
          description="Only for repositories with several GGUF files"
          placeholder="model.Q4_K_M.gguf"
          {...form.getInputProps("file")}
        />
        <TextInput label="Model id" description="Name under which clients call the model" placeholder="@cf/acme/chat" required {...form.getInputProps("name")} />
        <Group grow align="start">
          <NumberInput label="Input price" description="Neurons per million tokens" placeholder="as listed, or free" min={0} {...form.getInputProps("input")} />
          <NumberInput label="Output price" description="Neurons per million tokens" placeholder="as listed, or free" min={0} {...form.getInputProps("output")} />
        </Group>
        <Text size="xs" c="dimmed">
          The copy goes on in the background. It resumes after a restart of the gateway.
        </Text>
        {publish.error && <ErrorState error={publish.error} title="The publication was refused" />}
        <Group justify="flex-end">
          <Button variant="default" onClick={onDone}>
            Cancel
          </Button>
          <Button type="submit" loading={publish.isPending}>
            Publish
          </Button>
        </Group>
      </Stack>
    </form>
  );
}

function suggestName(repository: string, form: { values: Values; setFieldValue: (name: "name", value: string) => void }): void {
  const name = repository.trim().toLowerCase();
  if (form.values.name === "" && /^[\w.-]+\/[\w.-]+$/.test(name)) form.setFieldValue("name", `@hf/${name}`);
}

function bodyOf(values: Values) {
  const prices =
    values.input === "" || values.output === "" ? {} : { prices: { input: Number(values.input), output: Number(values.output) } };
  const common = { name: values.name, file: values.file, ...prices };
  return values.source === "hub"
    ? { source: "hub" as const, repository: values.repository.trim(), revision: values.revision || "main", ...common }
    : { source: "bucket" as const, prefix: values.prefix, ...common };
}
