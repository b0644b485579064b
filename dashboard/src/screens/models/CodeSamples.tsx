/** Code samples of one call in tabs, each with a copy button. */

import { Tabs, Text } from "@mantine/core";
import { JsonView } from "@/components/JsonView";
import { codeSample, LANGUAGES, type SampledCall, type SampleLanguage } from "./code-samples";

const NEEDS: Record<SampleLanguage, string> = {
  curl: "Needs an API token in the environment variable TOKEN.",
  python: "Needs an API token in the environment variable TOKEN, and the package of the first import.",
  javascript: "Needs Node.js 22 or newer and an API token in the environment variable TOKEN.",
  worker: "Needs an AI binding with the name AI. Run it on this machine with: hearth worker dev FILE.",
};

export function CodeSamples({ call }: { call: Omit<SampledCall, "origin"> }) {
  const languages = Object.keys(LANGUAGES) as SampleLanguage[];
  return (
    <Tabs defaultValue="curl">
      <Tabs.List aria-label="Language" mb="xs">
        {languages.map((language) => (
          <Tabs.Tab key={language} value={language}>
            {LANGUAGES[language]}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      {languages.map((language) => (
        <Tabs.Panel key={language} value={language}>
          <Text size="xs" c="dimmed" mb={6}>
            {NEEDS[language]}
          </Text>
          <JsonView
            value={codeSample({ ...call, origin: window.location.origin }, language)}
            label={`${LANGUAGES[language]} code`}
          />
        </Tabs.Panel>
      ))}
    </Tabs>
  );
}
