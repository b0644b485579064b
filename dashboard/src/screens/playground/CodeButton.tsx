/** "Copy as code": the current request as a program. */

import { Button, Modal } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconCode } from "@/components/icons";
import type { SampledCall } from "@/screens/models/code-samples";
import { CodeSamples } from "@/screens/models/CodeSamples";

export function CodeButton({ call }: { call: Omit<SampledCall, "origin"> }) {
  const [isOpen, { open, close }] = useDisclosure(false);
  return (
    <>
      <Button variant="default" leftSection={<IconCode size={14} />} onClick={open}>
        Copy as code
      </Button>
      <Modal opened={isOpen} onClose={close} title="This request as code" size="xl">
        <CodeSamples call={call} />
      </Modal>
    </>
  );
}
