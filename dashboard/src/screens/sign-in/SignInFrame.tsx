import { Center, Group, Paper, Title } from "@mantine/core";
import type { ReactNode } from "react";
import { Logo } from "@/app/Logo";

export function SignInFrame({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Center mih="100vh" p="md" component="main">
      <Paper p="xl" w={400} maw="100%">
        <Group gap="sm" mb="lg">
          <Logo size={28} />
          <Title order={1}>{title}</Title>
        </Group>
        {children}
      </Paper>
    </Center>
  );
}
