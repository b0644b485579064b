/** Create a finetune with its two files, or upload the files of one again. */

import { Button, FileInput, Group, Modal, Select, Stack, Stepper, Switch, Textarea, TextInput } from "@mantine/core";
import { useForm } from "@mantine/form";
import { notifications } from "@mantine/notifications";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ErrorState } from "@/components/ErrorState";
import { formatBytes } from "@/lib/format";
import { useCallableNames, useCatalog } from "@/screens/models/catalog";
import { hasCapability } from "@/screens/models/catalog-filters";
import { createFinetune, type Finetune, FILES, uploadFile } from "./queries";

interface UploadFinetuneProps {
  accountId: string;
  /** The finetune whose files are uploaded again, or `new`; null closes the dialog. */
  subject: Finetune | "new" | null;
  onClose: () => void;
}

export function UploadFinetune({ accountId, subject, onClose }: UploadFinetuneProps) {
  const [isBusy, setBusy] = useState(false);
  const close = () => !isBusy && onClose();
  const title = subject === "new" || subject === null ? "Upload a finetune" : `Upload the files of ${subject.name.slice(0, 80)}`;
  return (
    <Modal opened={subject !== null} onClose={close} title={title} size="lg" closeOnClickOutside={false}>
      {subject && <UploadForm accountId={accountId} subject={subject} onBusy={setBusy} onDone={onClose} />}
    </Modal>
  );
}

interface Values {
  model: string;
  name: string;
  description: string;
  public: boolean;
  config: File | null;
  weights: File | null;
}

interface UploadFormProps {
  accountId: string;
  subject: Finetune | "new";
  onBusy: (isBusy: boolean) => void;
  onDone: () => void;
}

function UploadForm({ accountId, subject, onBusy, onDone }: UploadFormProps) {
  const queries = useQueryClient();
  const catalog = useCatalog();
  const callable = useCallableNames();
  // A failed upload leaves the finetune without files; the next attempt continues with it.
  const [created, setCreated] = useState<Finetune | null>(subject === "new" ? null : subject);
  const [step, setStep] = useState<number | null>(null);
  const [error, setError] = useState<unknown>(null);
  const form = useForm<Values>({
    initialValues: { model: "", name: "", description: "", public: false, config: null, weights: null },
    validate: {
      model: (value) => (created || value ? null : "Choose the model that the adapter was trained on."),
      name: (value) => (created || /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/.test(value) ? null : "Use letters, digits and . _ - (up to 128)."),
      config: (value) => (value ? null : "Choose the file."),
      weights: (value) => (value ? null : "Choose the file."),
    },
  });
  const models = (catalog.data ?? []).filter((model) => hasCapability(model, "lora") && callable.data?.has(model.name));

  const submit = async (values: Values) => {
    const { config, weights, ...fields } = values;
    if (!config || !weights) return;
    onBusy(true);
    setError(null);
    try {
      setStep(0);
      const finetune = created ?? (await createFinetune(accountId, fields));
      setCreated(finetune);
      setStep(1);
      await uploadFile(accountId, finetune.id, FILES[0], config);
      setStep(2);
      await uploadFile(accountId, finetune.id, FILES[1], weights);
      notifications.show({ message: `${finetune.name} is ready`, color: "teal" });
      onDone();
    } catch (reason) {
      setError(reason);
      setStep(null);
    } finally {
      onBusy(false);
      await queries.invalidateQueries({ queryKey: ["finetunes", accountId] });
    }
  };
  const isBusy = step !== null;
  return (
    <form onSubmit={form.onSubmit((values) => void submit(values))}>
      <Stack gap="sm">
        {!created && (
          <>
            <Select
              label="Base model"
              placeholder={models.length === 0 ? "No published model supports adapters" : "Choose a model"}
              required
              searchable
              data={models.map((model) => model.name)}
              disabled={isBusy}
              {...form.getInputProps("model")}
            />
            <TextInput label="Name" description="Calls select the adapter by this name" required disabled={isBusy} {...form.getInputProps("name")} />
            <Textarea label="Description" autosize disabled={isBusy} {...form.getInputProps("description")} />
            <Switch
              label="Public: all accounts of this platform may use it"
              disabled={isBusy}
              {...form.getInputProps("public", { type: "checkbox" })}
            />
          </>
        )}
        <FileInput label={FILES[0]} placeholder="Choose the file" accept=".json" required disabled={isBusy} {...form.getInputProps("config")} />
        <FileInput
          label={FILES[1]}
          placeholder="Choose the file"
          accept=".safetensors"
          required
          disabled={isBusy}
          description={form.values.weights ? formatBytes(form.values.weights.size) : undefined}
          {...form.getInputProps("weights")}
        />
        {step !== null && (
          <Stepper active={step} size="xs" aria-label="Progress of the upload">
            <Stepper.Step label="Create" loading={step === 0} />
            <Stepper.Step label="Configuration" loading={step === 1} />
            <Stepper.Step label="Weights" loading={step === 2} />
          </Stepper>
        )}
        {Boolean(error) && <ErrorState error={error} title={created ? "A file was not accepted" : "The finetune was not created"} />}
        <Group justify="flex-end">
          <Button variant="default" disabled={isBusy} onClick={onDone}>
            Cancel
          </Button>
          <Button type="submit" loading={isBusy}>
            Upload
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
