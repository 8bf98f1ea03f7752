"""The lead method's step of the dual: along its residual, or along the weighted gradient as the paper prints it.

With r, G, H, s and the other symbols of `pipeline.methods.client_weighting.primal_dual`:

    residual     lambda <- Proj( lambda - eta_lambda ( r + s Gamma rho lambda ) )
    printed      lambda <- Proj( lambda + eta_lambda ( G - s rho lambda ) )

Why the residual (ours)
-----------------------
The printed dual collects G, and so does w: with kappa = eta_lambda / (eta_w Gamma), undamped and inside the ball,

    mu_t = lambda_t + kappa (w_t - w_1)   obeys   mu_(t+1) - mu_t = - (eta_lambda / Gamma) r

so lambda = mu - kappa (w_t - w_1): a solver of H lambda = - grad f_0, minus the path of training. While the model still
trains the path is far larger, and its inner product with g_i is about + kappa eta_w Gamma G^T g_i, positive for clients
that agree with the others: their weight falls, and that of bad clients rises. On the given federations of
`experiments/trust` (seeds 0 and 1, without LeNet-5, 100 rounds) the AUC of clean over bad clients is .33 on average
with the printed dual and the settings of `experiments.former`, and .99 with the residual. The path needs sgd on w and
the undamped dual; momentum, adam and several inner steps put another path in its place, and damping lets it decay at
the rate eta_lambda rho. The residual dual has no memory of the path under any optimizer, K or estimator: its direction
is a function of the present (w, lambda, x) alone, unbiased under `paper`, and built from answers that the method needs
anyway (the same gradients, products and floats).

Stationary points. r + Gamma G = 0 and r = 0 hold where G = 0 and H lambda = - grad f_0: the printed method's own. With
damping rho, r = - Gamma rho lambda and so G = rho lambda, lambda = -(H + Gamma rho I)^(-1) grad f_0: again the
printed method's. On the ball's boundary -r = kappa lambda with kappa >= 0, which is damping by rho = kappa / Gamma.

Stability. At a fixed x let H and A = Hess f_0 + sum_i x_i D^3 f_i[lambda] have the eigenvalues h > 0 and a in a common
direction. One step maps the errors of (w, lambda) by I - M,

    M = [ eta_w (a + Gamma h)   eta_w h      ]        det M = eta_w eta_lambda Gamma h^2
        [ eta_lambda a          eta_lambda h ]         tr M = eta_w a + (eta_lambda + eta_w Gamma) h

With p = eta_w Gamma h and q = eta_lambda h in (0, 2) and a >= 0, it contracts if and only if (Jury's conditions)

    (2 - p)(2 - q) > 2 eta_w a .

The limits of `common.steps` keep p within c, as far as f_0's curvature stands for h, q within 1/2 along lambda, and
with the first the right-hand side within 2 c a / (Gamma h). At p = c = 2 the condition fails for any a > 0, and a
regression ends at infinity there. So a second limit keeps p + eta_w a, which the last move has met, within c as well.
With a = h and q = 1/2 the condition is p + eta_w a < 6 (Gamma + 1) / (3 Gamma + 4), which is 1.87 at Gamma = 4: what
remains between 1.87 and 2 is left to the schedule, and to the next step, which is shortened where the last one grew.

For small steps the two rates are, at a = 0, eta_lambda h and eta_w Gamma h exactly. The printed dual has the rates
eta_w h (Gamma +- sqrt(Gamma^2 - 4 eta_lambda / eta_w)) / 2, the slow one about eta_lambda h / Gamma: Gamma times
slower. Where the server's curvature dominates (a >> Gamma h) the slow rates are eta_lambda Gamma h^2 / a against
eta_lambda h^2 / a, again a factor Gamma. A negative a, as networks have it, is borne down to about
-(eta_lambda / eta_w + Gamma) h, against -Gamma h with the printed dual. SOBA, whose model takes no part of r, has the
rates eta_w Gamma h and eta_lambda h whatever a is (M is triangular), but its model never uses the server's samples.

Damping (ours, off). Along directions in which H is flat the dual grows until it meets the ball. rho > 0 adds Gamma rho
to every curvature of its system. The price is a bias: w is displaced by O(rho) and lambda by O(Gamma rho), so
lambda^T grad f_i is off by O((1 + Gamma) rho).

Rising Gamma (ours). As a penalty method raises its penalty, `gamma_schedule: rising` takes Gamma_t = Gamma / s_t with
the schedule's factor s_t; w's scheduled step is taken times s_t once more, so that w moves along the clients' gradients
as before. These are the factors s_t above. With damping its pull on w, G = s rho lambda, falls with s. With adam, whose
steps do not depend on a direction's length, only Gamma_t matters.
"""

from __future__ import annotations

from torch import Tensor

from pipeline.methods.client_weighting.common import steps
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext


def direction(
    context: WeightingContext, lam: Tensor, sum_g: Tensor, sum_h: Tensor, r: Tensor, s: float | Tensor
) -> Tensor:
    """The dual's direction, [d]. sum_g, sum_h: G and H lambda, [d]. r: the residual, with its factor s, [d]."""
    hyper = context.hyper
    if hyper.dual == "printed":
        return s * hyper.dual_damping * lam - sum_g
    residual = r + s * hyper.gamma * hyper.dual_damping * lam
    if not hyper.curvature_limit:
        return residual
    return steps.dual_direction(lam, s * sum_h, residual, context.step_sizes["lambda"])
