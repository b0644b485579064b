/** JSON as text, with a copy button. */

import { Box, Code } from "@mantine/core";
import { CopyButton } from "./CopyButton";

const MAX_SHOWN_CHARACTERS = 200_000; // more would make the page slow; the copy button gives the whole text

export function JsonView({ value, label = "JSON", maxHeight = 420 }: { value: unknown; label?: string; maxHeight?: number }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const shown = text.length > MAX_SHOWN_CHARACTERS ? `${text.slice(0, MAX_SHOWN_CHARACTERS)}\n…` : text;
  return (
    <Box pos="relative" miw={0}>
      <Box pos="absolute" top={5} right={5} bg="var(--hearth-panel)" style={{ borderRadius: 4 }}>
        <CopyButton value={text} label={`Copy ${label}`} />
      </Box>
      <Code block fz="xs" mah={maxHeight} style={{ overflow: "auto" }} tabIndex={0} aria-label={label}>
        {shown}
      </Code>
    </Box>
  );
}
