/** Look of all components: dense, system fonts, one accent color. */

import {
  ActionIcon,
  Badge,
  Button,
  Card,
  createTheme,
  type MantineColorsTuple,
  Modal,
  MultiSelect,
  NumberInput,
  Paper,
  PasswordInput,
  SegmentedControl,
  Select,
  Switch,
  Table,
  Tabs,
  TagsInput,
  Textarea,
  TextInput,
  Tooltip,
} from "@mantine/core";

const ember: MantineColorsTuple = [
  "#fff2ea",
  "#fde2d2",
  "#f9c3a3",
  "#f5a271",
  "#f08647",
  "#ea7029",
  "#d9581a",
  "#b84711",
  "#9a3b0e",
  "#7c2e0b",
];
// Cooler and darker than Mantine's gray, so that text and lines have enough contrast on dark panels.
const dark: MantineColorsTuple = [
  "#d5d9e0",
  "#b4bac5",
  "#959dab",
  "#5f6877",
  "#3a414d",
  "#2b313b",
  "#1f242c",
  "#171b21",
  "#12151a",
  "#0c0e12",
];

// Mantine's colors with darker shades where their text has a contrast below 4.5.
const teal: MantineColorsTuple = [
  "#e6fcf5",
  "#c3fae8",
  "#96f2d7",
  "#63e6be",
  "#38d9a9",
  "#20c997",
  "#12b886",
  "#087f5b",
  "#076e4f",
  "#055c42",
];
const red: MantineColorsTuple = [
  "#fff5f5",
  "#ffe3e3",
  "#ffc9c9",
  "#ffa8a8",
  "#ff8787",
  "#ff6b6b",
  "#fa5252",
  "#c92a2a",
  "#b32424",
  "#9c1f1f",
];

const yellow: MantineColorsTuple = [
  "#fff9db",
  "#fff3bf",
  "#ffec99",
  "#ffe066",
  "#ffd43b",
  "#fcc419",
  "#fab005",
  "#8a5a00",
  "#7a4f00",
  "#6b4500",
];

const small = { defaultProps: { size: "sm" } };

export const theme = createTheme({
  colors: { ember, dark, teal, red, yellow },
  primaryColor: "ember",
  primaryShade: 7,
  autoContrast: true,
  fontFamily: 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif',
  fontFamilyMonospace: 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace',
  fontSizes: { xs: "0.75rem", sm: "0.8125rem", md: "0.875rem", lg: "1rem", xl: "1.125rem" },
  defaultRadius: "sm",
  cursorType: "pointer",
  headings: {
    fontWeight: "600",
    sizes: {
      h1: { fontSize: "1.25rem", lineHeight: "1.4" },
      h2: { fontSize: "1rem", lineHeight: "1.4" },
      h3: { fontSize: "0.875rem", lineHeight: "1.4" },
    },
  },
  components: {
    ActionIcon: ActionIcon.extend({ defaultProps: { variant: "subtle", color: "gray" } }),
    Badge: Badge.extend({ defaultProps: { variant: "light", radius: "sm" }, styles: { root: { minWidth: "max-content" }, label: { textTransform: "none", fontWeight: 500 } } }),
    Button: Button.extend({ defaultProps: { size: "xs" } }),
    Card: Card.extend({ defaultProps: { withBorder: true, padding: "md" } }),
    Modal: Modal.extend({ defaultProps: { centered: true, closeButtonProps: { "aria-label": "Close" }, overlayProps: { backgroundOpacity: 0.45 } } }),
    Paper: Paper.extend({ defaultProps: { withBorder: true } }),
    SegmentedControl: SegmentedControl.extend({ defaultProps: { size: "xs" } }),
    Table: Table.extend({ defaultProps: { verticalSpacing: 6, horizontalSpacing: "sm", fz: "sm" } }),
    Tabs: Tabs.extend({ defaultProps: { keepMounted: false } }),
    Tooltip: Tooltip.extend({ defaultProps: { openDelay: 300, withArrow: true, events: { hover: true, focus: true, touch: true } } }),
    MultiSelect: MultiSelect.extend(small),
    NumberInput: NumberInput.extend(small),
    PasswordInput: PasswordInput.extend(small),
    Select: Select.extend(small),
    Switch: Switch.extend(small),
    TagsInput: TagsInput.extend(small),
    Textarea: Textarea.extend(small),
    TextInput: TextInput.extend(small),
  },
});
