/** Paths of the dashboard. */

import { useState } from "react";
import { createBrowserRouter, Navigate, useLocation } from "react-router";
import { takeRememberedPage } from "@/lib/next-page";
import { SignIn } from "@/screens/sign-in/SignIn";
import { SignInLink } from "@/screens/sign-in/SignInLink";
import { NotFound, ScreenFailure } from "./NotFound";
import { SCREENS } from "./screens";
import { Shell } from "./Shell";

function StartPage() {
  const { search } = useLocation();
  const [remembered] = useState(takeRememberedPage);
  return <Navigate to={remembered ?? { pathname: "/overview", search }} replace />;
}

export const router = createBrowserRouter(
  [
    { path: "/sign-in", element: <SignIn /> },
    { path: "/link", element: <SignInLink /> },
    {
      path: "/",
      element: <Shell />,
      children: [
        { index: true, element: <StartPage /> },
        ...SCREENS.map((screen) => ({
          path: `${screen.path}/*`,
          element: <screen.component />,
          errorElement: <ScreenFailure />,
        })),
        { path: "*", element: <NotFound /> },
      ],
    },
  ],
  { basename: "/dashboard" },
);
