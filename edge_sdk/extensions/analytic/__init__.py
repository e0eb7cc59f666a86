"""Analytic federation: personal robust ridge regression in closed form, in numpy alone.

Device i has feature rows φ, shape ``(P,)``, and targets y. It sends the sums Σwφφᵀ and Σwφy. The
aggregator adds the sums of all devices and solves them; each device solves its own sums again, drawn
towards the fleet's solution. Everything here is a pure function over arrays.

    features → standardise → random_units → statistics → solve → personal → online
"""
