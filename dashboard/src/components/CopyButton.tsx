import { ActionIcon, Button, CopyButton as MantineCopyButton, Tooltip } from "@mantine/core";
import { IconCheck, IconCopy } from "./icons";

interface Props {
  value: string;
  /** Says what is copied: the accessible name. */
  label: string;
  /** Show the label beside the icon. */
  withText?: boolean;
}

export function CopyButton({ value, label, withText = false }: Props) {
  return (
    <MantineCopyButton value={value} timeout={1500}>
      {({ copied, copy }) => {
        const icon = copied ? <IconCheck size={14} /> : <IconCopy size={14} />;
        if (withText) {
          return (
            <Button variant="default" leftSection={icon} onClick={copy}>
              {copied ? "Copied" : label}
            </Button>
          );
        }
        return (
          <Tooltip label={copied ? "Copied" : label}>
            <ActionIcon size="sm" aria-label={label} color={copied ? "teal" : "gray"} onClick={copy}>
              {icon}
            </ActionIcon>
          </Tooltip>
        );
      }}
    </MantineCopyButton>
  );
}
